"""Span F1: the exact best span of a passage for an answer."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import span_f1 as benchmark
from benchmarks.span_f1 import every_span, growing_spans
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.text import scores
from finegrained_rlhf.text.scores import Span, SpanMatcher, bag_f1, word_tokens


@pytest.mark.parametrize("rows", [512, 3])
def test_equals_every_span_on_random_cases(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "_ROWS", rows)
    draw = random.Random(rows)
    for _ in range(500):
        words = [str(i) for i in range(draw.randint(1, 8))]
        passage = draw.choices(words, k=draw.randint(0, 24))
        answer = draw.choices([*words, "elsewhere"], k=draw.randint(1, 9))
        found = SpanMatcher(answer).best(passage)
        assert found.f1 == every_span(passage, answer) == growing_spans(passage, answer), (passage, answer)
        assert found.f1 == (bag_f1(passage[found.start : found.end], answer) if found.end else 0.0)


def test_no_span_exceeds_the_bound_and_it_is_reached() -> None:
    draw = random.Random(0)
    for _ in range(300):
        passage, answer = draw.choices("abcdef", k=draw.randint(0, 15)), draw.choices("abcx", k=draw.randint(1, 6))
        assert SpanMatcher(answer).best(passage).f1 <= SpanMatcher(answer).bound(passage)
    assert SpanMatcher(list("abx")).bound(list("zabz")) == SpanMatcher(list("abx")).best(list("zabz")).f1 == 4 / 5


def test_by_hand() -> None:
    """All 5 tokens of the answer in 8 of the passage: 2·5 / (8 + 5), which beats the first 3 alone, 2·3 / (3 + 5)."""
    passage = "The group had money troubles. In late 1969, Zappa broke up the band."
    found = SpanMatcher(word_tokens("Late 1969, the band")).best(word_tokens(passage))
    assert found == Span(10 / 13, 7, 15)
    assert " ".join(word_tokens(passage)[found.start : found.end]) == "late 1969 , zappa broke up the band"


def test_a_token_counts_no_more_often_than_the_answer_has_it() -> None:
    assert SpanMatcher(["a", "b"]).best(["a", "a", "a", "b"]) == Span(1.0, 2, 4)
    assert SpanMatcher(["a", "a"]).best(["a", "x", "a"]) == Span(4 / 5, 0, 3)


def test_equal_spans_first_and_shortest() -> None:
    assert SpanMatcher(["a"]).best(["x", "a", "x", "a"]) == Span(1.0, 1, 2)


def test_nothing_shared() -> None:
    assert SpanMatcher(["a"]).best(["x", "y"]) == SpanMatcher(["a"]).best([]) == Span(0.0, 0, 0)
    assert SpanMatcher(["a"]).bound(["x"]) == 0.0


def test_an_answer_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        SpanMatcher(word_tokens("  "))


def test_tokens() -> None:
    """NLTK's tokens in lower case; a full stop before white space is a token of its own, whatever it ends."""
    expected = ["zappa", "did", "n't", "stop", ".", "he", "(", "b", ".", "1940", ")", "went", "on", "."]
    assert word_tokens("Zappa didn't stop. He (b. 1940) went on.") == expected
    assert word_tokens("") == word_tokens(" \n") == []
    assert word_tokens("At 3.5 km.") == ["at", "3.5", "km", "."]


def test_the_benchmark_times_every_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "CASES", dict.fromkeys(benchmark.CASES, 2))
    monkeypatch.setattr(benchmark, "TOKENS", 30)
    benchmark.main([f"out={tmp_path}/times.json"])
    found = json.loads((tmp_path / "times.json").read_text())
    assert set(found["milliseconds"]) == {"every_span", "growing_spans", "ours", "bound"}
    assert found["times_ours"]["ours"] == 1.0 and found["passage_tokens"] == 30
    with pytest.raises(ConfigError, match="out=… is missing"):
        benchmark.main([])


def test_the_benchmark_refuses_sides_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "ours", lambda passage, answer: -1.0)
    with pytest.raises(SystemExit, match="every_span and ours differ"):
        benchmark.measure(10, dict.fromkeys(benchmark.CASES, 1))
