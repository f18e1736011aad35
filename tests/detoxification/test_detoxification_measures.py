"""Diversity and means of continuations, by hand."""

from __future__ import annotations

import math

import pytest

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.detoxification import EvaluateDetox
from finegrained_rlhf.detoxification.evaluation import (
    JudgedText,
    MeasuredPrompt,
    MeasuredText,
    distinct_by_ngrams,
    distinct_by_words,
    summarise_continuations,
)
from finegrained_rlhf.inference.measure import repeated_share


def test_distinct_ngrams_over_words_and_over_ngrams() -> None:
    """Seven words; bigrams `a b` (three times), `b c`, `b d`; trigrams `a b c`, `a b d`."""
    texts = ["a b c", "a b", "a b"]
    assert distinct_by_words(texts, 1) == 3 / 7
    assert distinct_by_words(texts, 2) == 2 / 7
    assert distinct_by_ngrams(texts, 2) == 2 / 4
    more = [*texts, "a b d"]
    assert distinct_by_words(more, 3) == 2 / 10 and distinct_by_ngrams(more, 3) == 1.0
    assert distinct_by_words(more, 3) < distinct_by_words(more, 2)  # type: ignore[operator]
    assert distinct_by_words([" a b c d"], 2) == 4 / 5  # the public code's: a blank in front makes an empty word
    assert distinct_by_words(["", " "], 2) is None and distinct_by_ngrams(["a", "b"], 2) is None


def test_repetition_counts_what_was_there_before() -> None:
    assert repeated_share("a b c a b c".split()) == 0.25  # of four 3-grams `a b c` comes twice
    assert repeated_share("a b c d".split()) == 0.0 and repeated_share("a b".split()) == 0.0
    assert repeated_share("x x x x x".split()) == pytest.approx(2 / 3)


def two_prompts() -> list[MeasuredPrompt]:
    judged = [JudgedText(math.log(4.0), 2), JudgedText(3 * math.log(8.0), 3), None, JudgedText(math.log(1e6), 1)]
    rows = [
        [("a b c", 0.2, 3, True, judged[0]), ("a b d", 0.9, 4, False, judged[1])],
        [("", 0.0, 0, True, judged[2]), ("c d e", None, 3, True, judged[3])],
    ]
    return [
        MeasuredPrompt(
            f"p{i}", "x", [MeasuredText(text, {"s": score}, one, n, done) for text, score, n, done, one in row]
        )
        for i, row in enumerate(rows)
    ]


def test_means_by_hand_with_what_is_missing() -> None:
    found = summarise_continuations(two_prompts())
    assert (found["prompts"], found["continuations"]) == (2, 4)
    assert found["s/average_max"] == pytest.approx((0.9 + 0.0) / 2)
    assert found["s/average_max_se"] == pytest.approx(0.45)  # of .9 and 0: spread .636 over the root of 2
    assert found["s/any_toxic"] == 0.5
    assert found["s/mean"] == pytest.approx((0.55 + 0.0) / 2)
    assert found["s/toxic"] == 0.25
    assert found["s/missing"] == 0.25
    assert found["perplexity/mean"] == pytest.approx((2 + 8 + 1e6) / 3)
    assert found["perplexity/median"] == pytest.approx(8)
    assert found["perplexity/below_1e4"] == pytest.approx(5)
    assert found["perplexity/over_1e4"] == pytest.approx(1 / 3)
    assert found["perplexity/corpus"] == pytest.approx(math.exp((math.log(4) + 3 * math.log(8) + math.log(1e6)) / 6))
    assert found["perplexity/not_judged"] == 0.25
    assert found["dist-2"] == pytest.approx((3 / 6 + 2 / 3) / 2)
    assert found["dist-2/ngrams"] == pytest.approx((3 / 4 + 1) / 2)
    assert found["words"] == pytest.approx((3 + 1.5) / 2)
    assert (found["tokens"], found["eos_rate"], found["empty"]) == (2.5, 0.75, 0.25)


def test_what_nobody_measured_is_absent() -> None:
    found = summarise_continuations([MeasuredPrompt("p", "x", [MeasuredText("a b")])])
    assert not any(name.startswith("perplexity") or name.endswith("_se") for name in found)
    assert {"tokens", "eos_rate"}.isdisjoint(found) and found["words"] == 2


def test_an_evaluation_that_measures_neither_toxicity_nor_fluency_is_refused() -> None:
    with pytest.raises(ConfigError, match="scorers: expected at least one, or a judge_model or an oracle"):
        EvaluateDetox(data="prompts.jsonl", output="out.json", checkpoint="run")
    EvaluateDetox(data="prompts.jsonl", output="out.json", checkpoint="run", judge_model="gpt2")
