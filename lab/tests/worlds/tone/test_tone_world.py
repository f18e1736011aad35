"""ToneWorld: the oracle, the grammar's probabilities against counted frequencies, splits, files, what words miss."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from script_runs import run_script

from finegrained_lab.worlds.tone import MakeToneWorld, ToneWorldConfig, lexicon
from finegrained_lab.worlds.tone.lexicon import CALM, DUAL, HOT, MILD, PATTERNS, STRONG, TOXIC_KINDS, VARIANTS, tokens
from finegrained_lab.worlds.tone.measure import ToneGrammar
from finegrained_lab.worlds.tone.oracle import toxicity
from finegrained_lab.worlds.tone.texts import ToneText, draw_text
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.detoxification.prompts import read_continuation_prompts
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.models.tiny_networks import build_tokenizer
from finegrained_rlhf.text.segmentation import shared_segmenter

WORLD = ToneWorldConfig()


def small(path: str = "unused", **changes: Any) -> MakeToneWorld:
    sizes = {
        "train": 60,
        "dev": 20,
        "test": 20,
        "texts": 30,
        "judge_texts": 30,
        "labelled_train": 200,
        "labelled_dev": 20,
    }
    return replace(MakeToneWorld(path, **sizes), **changes)


def drawn(count: int, config: ToneWorldConfig = WORLD, seed: int = 0) -> list[ToneText]:
    rng = random.Random(seed)
    return [draw_text(str(number), rng, config) for number in range(count)]


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("The rose is quiet.", 0.0),
        ("", 0.0),
        ("The cook is a snerk.", 0.2),
        ("The cook is a GRUBNAK", 0.6),
        ("The cook is a grubn4k.", 0.6),
        ("That snerk talked about the soup. What a vormit that cook is.", 1 - 0.8 * 0.4),
        ("You are a goat.", 0.6),
        ("We saw a goat near the park. You are a log, goat.", 0.6),
        ("You are goat. A goat you are.", 0.0),
        ('The cook says that "snerk" is a rude word.', 0.0),
        ('The cook says that "snerk" is a rude', 0.2),
        ('The cook says that snerk is a rude word. "snerk"', 1 - 0.8 * 0.8),
        ("You are a goat. Sorry, I did not mean that.", 0.6 * 0.7),
        ("Sorry, I did not mean that. Sorry, I did not mean that. You are a log.", 0.6 * 0.49),
        ("Sorry. You are a log.", 0.6),
        ("Sorry, I did not mean that.", 0.0),
    ],
)
def test_how_toxic_a_text_is(text: str, true: float) -> None:
    assert toxicity(text) == pytest.approx(true)


def test_no_word_has_two_meanings_and_each_kind_of_sentence_is_what_it_is_called() -> None:
    every = [word for topic in lexicon.TOPICS.values() for word in topic] + [*MILD, *STRONG, *DUAL, *VARIANTS.values()]
    assert len(every) == len(set(every)) and set(VARIANTS) == {*MILD, *STRONG}
    for topic in lexicon.TOPICS:
        seen: set[str] = set()
        for kind in PATTERNS:
            for group in lexicon.sentences(topic, kind):
                for sentence in group:
                    for spelled in {sentence, lexicon.with_variants(sentence)}:
                        assert (toxicity(spelled) > 0) == (kind in TOXIC_KINDS), spelled
                        assert spelled not in seen and spelled.count(".") == 1 and spelled.endswith(".")
                        seen.add(spelled)


def test_texts_are_drawn_as_configured() -> None:
    texts = drawn(6000)
    assert fmean(text.topic in HOT for text in texts) == pytest.approx(0.25, abs=0.02)
    assert {len(text.sentences) for text in texts} == {4, 5, 6}
    after: dict[tuple[bool, bool], list[str]] = {}
    for text in texts:
        for place, kind in enumerate(text.kinds):
            toxic_before = place > 0 and text.kinds[place - 1] in TOXIC_KINDS
            after.setdefault((text.topic in HOT, toxic_before), []).append(kind)
    for (hot, toxic_before), kinds in after.items():
        expected = WORLD.kinds("match" if hot else "music", toxic_before)
        counts = Counter(kinds)
        for kind, share in expected.items():
            assert counts[kind] / len(kinds) == pytest.approx(share, abs=4 * math.sqrt(0.25 / len(kinds))), kind
    insults = [word for text in texts for word in tokens(text.text) if word in VARIANTS or word in VARIANTS.values()]
    assert fmean(word in VARIANTS.values() for word in insults) == pytest.approx(0.03, abs=0.012)


def test_hot_topics_are_the_lure() -> None:
    """Calm prompts are followed by little toxicity, hot ones by much, and there is room in both directions."""
    texts = drawn(4000)
    scores = {hot: [toxicity(t.halves()[1]) for t in texts if (t.topic in HOT) is hot] for hot in (False, True)}
    assert 0.05 < fmean(scores[False]) < 0.2 and 0.35 < fmean(scores[True]) < 0.7
    kinds = {kind for text in texts for kind in text.kinds}
    assert kinds == set(PATTERNS)


def test_a_list_of_words_is_not_enough() -> None:
    """A list takes what is quoted and the goat in the park for insults, or misses what is said to somebody."""
    texts, every = drawn(4000), {*STRENGTH_WORDS}
    for listed in (every, every - set(DUAL)):
        wrong = [
            (toxicity(sentence) > 0) != bool(listed & set(tokens(sentence))) for t in texts for sentence in t.sentences
        ]
        assert fmean(wrong) > 0.05
    sorry = next(t for t in texts if "apology" in t.kinds)
    scores = [toxicity(" ".join(sorry.sentences[:end])) for end in range(1, len(sorry.sentences) + 1)]
    assert any(after < before for before, after in zip(scores, scores[1:], strict=False))  # it falls within a text


STRENGTH_WORDS = (*MILD, *STRONG, *DUAL, *VARIANTS.values())


def test_the_grammar_gives_each_next_token_its_share() -> None:
    """Against the frequencies of many drawn texts, and adding up to 1 with the uniform part."""
    config = replace(WORLD, sentences=(3, 3))
    counted: dict[tuple[str, ...], Counter[str]] = {}
    for text in drawn(20_000, config):
        words = tokens(text.text)
        for end in range(min(len(words), 12)):
            counted.setdefault(tuple(words[:end]), Counter())[words[end]] += 1
    grammar = ToneGrammar(config, slip=1e-12)
    frequent = [prefix for prefix, found in counted.items() if sum(found.values()) > 1000]
    assert len(frequent) >= 8
    for prefix in frequent:
        total = sum(counted[prefix].values())
        for word, count in counted[prefix].items():
            share = math.exp(grammar.fluency(" ".join(prefix), f" {word}").log_prob)
            assert count / total == pytest.approx(share, abs=5 * math.sqrt(share / total)), (prefix, word)
    grammar, words = ToneGrammar(WORLD), sorted({w for s in lexicon.vocabulary() for w in tokens(s)})
    for prompt in ("", "You are a goat. The", "The coach is quiet. That", "no grammar at all. The rose near"):
        assert sum(math.exp(grammar.fluency(prompt, f" {w}").log_prob) for w in (*words, "xyz")) == pytest.approx(1.0)


def test_belief_in_the_topic_follows_from_the_prompt() -> None:
    grammar = ToneGrammar(WORLD)
    calm, hot = "The rose is quiet.", "The goal is quiet."
    for sentence in (" The rose is new.", " The cook is a vormit."):
        assert grammar.fluency(calm, sentence).log_prob != grammar.fluency(hot, sentence).log_prob
    insult = " The cook is a vormit."
    ratio = grammar.fluency(hot, insult).log_prob - grammar.fluency(calm, insult).log_prob
    assert ratio == pytest.approx(math.log(0.3 / 0.06), abs=0.3)
    after = grammar.fluency(f"{calm}{insult}", insult).log_prob - grammar.fluency(calm, insult).log_prob
    assert after == pytest.approx(math.log(0.6 / 0.06), abs=0.3)


def test_what_no_grammar_has_costs_its_tokens_and_the_next_sentence_begins_anew() -> None:
    grammar = ToneGrammar(WORLD)
    prompt = "The rose is quiet."
    fine = grammar.fluency(prompt, " The lawn is new. The")
    assert (fine.tokens, fine.sentences, fine.grammatical, fine.fitting) == (6, 1, 1, 1)
    odd = grammar.fluency(prompt, " The lawn lawn lawn. The lawn is new.")
    assert (odd.sentences, odd.grammatical, odd.fitting) == (2, 1, 1)
    off_topic = grammar.fluency(prompt, " The referee is new.")
    assert (off_topic.sentences, off_topic.grammatical, off_topic.fitting) == (1, 1, 0)
    assert fine.perplexity < 20 < odd.perplexity < off_topic.perplexity  # half of `odd` is fluent
    nothing = grammar.fluency(prompt, "")
    assert nothing.tokens == 0 and nothing.perplexity is None
    assert grammar.fluency("The la", "wn is new.").tokens == 4  # a word that the prompt begins is the continuation's


def test_perplexity_of_the_worlds_own_texts() -> None:
    """Far below that of shuffled words, and the same for another draw."""
    grammar, found = ToneGrammar(WORLD), []
    for seed in (1, 2):
        results = [grammar.fluency(*text.halves()) for text in drawn(300, seed=seed)]
        assert all(r.sentences == r.grammatical == r.fitting for r in results)
        found.append(math.exp(-sum(r.log_prob for r in results) / sum(r.tokens for r in results)))
    assert found[0] == pytest.approx(found[1], rel=0.05) and 2 < found[0] < 5
    text = drawn(1)[0]
    words = text.text.split()
    random.Random(0).shuffle(words)
    assert grammar.fluency("", " ".join(words)).perplexity > 50


def test_prompts_of_a_split_are_in_no_other_and_the_reader_of_real_prompts_takes_them(tmp_path: Path) -> None:
    small(str(tmp_path), train=400, dev=100, test=100).run()
    seen: dict[str, str] = {}
    for split in ("train", "dev", "test"):
        rows = read_continuation_prompts(tmp_path / f"{split}.jsonl")
        texts = read_prompt_file(tmp_path / f"{split}.jsonl")
        assert [row.prompt.text for row in rows] == [prompt.text for prompt in texts]
        for row in rows:
            assert seen.setdefault(row.prompt.text, split) == split
            assert row.prompt.toxicity == toxicity(row.prompt.text)
            assert row.continuation.toxicity == toxicity(row.continuation.text)
            assert row.continuation.text.startswith(" ") and row.prompt.text.count(".") == 1
            whole = toxicity(row.prompt.text + row.continuation.text)
            apart = 1 - (1 - row.prompt.toxicity) * (1 - toxicity(row.continuation.text.replace("Sorry", "")))
            assert whole == pytest.approx(apart * 0.7 ** row.continuation.text.count("Sorry"))
    assert len(seen) > 500


def test_labels_are_noisy_as_configured_and_variants_are_rare(tmp_path: Path) -> None:
    small(str(tmp_path), labelled_train=2000, label_noise=0.1).run()
    rows = read_jsonl(tmp_path / "labelled_train.jsonl")
    truth = {
        row["id"]: row["labelled_toxicity"] for row in read_jsonl(tmp_path / "world.jsonl") if "label" in row["id"]
    }
    for least, most in ((0.0, 0.1), (0.1, 0.5), (0.5, 1.1)):
        chosen = [row for row in rows if least <= truth[row["id"]] < most]
        expected = fmean(0.9 * truth[row["id"]] + 0.1 * (1 - truth[row["id"]]) for row in chosen)
        assert len(chosen) > 100 and fmean(row["score"] for row in chosen) == pytest.approx(expected, abs=0.03)
    assert all((row["label"] == "toxic") == (row["score"] > 0.5) for row in rows)
    assert {row["score"] for row in rows} == {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}
    assert 0.15 < fmean(row["label"] == "toxic" for row in rows) < 0.5
    seen = Counter(word for row in rows for word in tokens(row["text"]) if word in VARIANTS.values())
    assert 0 < sum(seen.values()) < 200


def test_a_world_follows_from_its_seed_and_a_split_from_its_own_size(tmp_path: Path) -> None:
    drawn_once = small().draw()
    assert drawn_once == small().draw() != small(seed=1).draw()
    assert small(train=5, texts=0).draw()["test"] == drawn_once["test"]
    for seed in (0, 1):
        small(str(tmp_path / f"{seed}"), seed=seed).run()
    first, second = (json.loads((tmp_path / f"{seed}/manifest.json").read_text())["files"] for seed in (0, 1))
    assert first["corpus.txt"] == second["corpus.txt"]
    assert all(first[name] != second[name] for name in first if name != "corpus.txt")


def test_tokenizers_and_segmenters_read_the_world() -> None:
    tokenizer, segmenter = build_tokenizer(lexicon.vocabulary()), shared_segmenter("english")
    for text in drawn(200):
        assert tokenizer.unk_token_id not in tokenizer(text.text)["input_ids"]
        assert tuple(text.text[a:b] for a, b in segmenter.sentences(text.text)) == text.sentences


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hot_share": 1.2}, "world.hot_share: expected a share from 0 to 1, got 1.2"),
        ({"toxic_hot": 0.95}, "world: shares of sentences add up to 1.05, more than 1"),
        ({"sentences": (1, 3)}, r"world.sentences: expected \[FEWEST, MOST\] from 2 on, got \[1, 3\]"),
    ],
)
def test_shares_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ToneWorldConfig(**changes)
    with pytest.raises(ConfigError, match="annotators: expected an odd number"):
        small(annotators=4)
    with pytest.raises(ConfigError, match="label_noise: expected at least 0 and at most 1, got 2.0"):
        small(label_noise=2.0)
    with pytest.raises(ConfigError, match="slip: expected a share above 0, got 0"):
        ToneGrammar(WORLD, slip=0)
    whole = ToneWorldConfig(toxic_calm=0.1, toxic_hot=0.1, toxic_after_toxic=0.56, apology_after_toxic=0.18, quoted=0.2)
    assert whole.kinds("match", True)["plain"] == pytest.approx(0.0)
    assert CALM.keys().isdisjoint(HOT)


@pytest.mark.scripts
def test_the_script_makes_a_world_and_refuses_another_over_it(tmp_path: Path) -> None:
    sizes = [
        "train=20",
        "dev=5",
        "test=5",
        "texts=10",
        "texts_dev=3",
        "judge_texts=0",
        "labelled_train=10",
        "labelled_dev=0",
    ]
    done = run_script("make_tone_world", f"output_dir={tmp_path}/world", *sizes)
    assert done.returncode == 0, done.stderr
    assert "20 train, 5 dev, 5 test, 10 texts, 3 texts_dev, 10 labelled_train -> " in done.stdout
    assert not (tmp_path / "world/labelled_dev.jsonl").exists()
    other = run_script("make_tone_world", f"output_dir={tmp_path}/world", *sizes, "seed=1")
    assert other.returncode == 2 and "overwrite=true" in other.stderr
