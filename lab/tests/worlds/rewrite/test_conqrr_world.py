"""RewriteWorld: rewrites, labels, splits, files, and how far words alone go."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from script_runs import run_script

from finegrained_lab.worlds.rewrite import lexicon
from finegrained_lab.worlds.rewrite.dialogues import RewriteWorldConfig
from finegrained_lab.worlds.rewrite.make import MakeRewriteWorld
from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample
from finegrained_rlhf.conqrr.labels import LabelConfig, LabelPassages
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny_networks import build_tokenizer
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.jobs import BuildIndex


def small(path: str = "unused", **changes: Any) -> MakeRewriteWorld:
    """A world of a few dialogues a split."""
    return replace(MakeRewriteWorld(path, train=60, dev=20, test=20), **changes)


def questions_of(world: MakeRewriteWorld, split: str) -> list[RewriteExample]:
    return [example for dialogue in world.draw()[split] for example in dialogue.examples()]


def test_no_word_of_the_lexicon_has_two_meanings() -> None:
    lists = [lexicon.NAMES, lexicon.QUALITIES, lexicon.ATTRIBUTES, *lexicon.THINGS.values()]
    words = [word.casefold() for words in lists for word in words]
    assert len(words) == len(set(words)) and all(word.isalpha() for word in words)
    assert all(len(set(values)) == 40 for values in lexicon.VALUES.values()) and len(lexicon.NAMES) == 40


def test_rewrites_follow_from_the_words_of_the_dialogue() -> None:
    """Replay each dialogue: what the question does not name is what was named last."""
    world = small(train=300)
    passages = {fact.id: fact.text for fact in world.facts().values()}
    counts: Counter[str] = Counter()
    for dialogue in world.draw()["train"]:
        name = attribute = ""
        spoken: list[str] = []
        for example, asked in zip(dialogue.examples(), dialogue.questions, strict=True):
            counts[asked.kind] += 1
            assert list(example.history) == spoken
            names = [word for word in re.findall(r"\w+", example.question) if word in lexicon.NAMES]
            attributes = [word for word in re.findall(r"\w+", example.question) if word in lexicon.ATTRIBUTES]
            assert (len(names), len(attributes)) == {
                "named": (1, 1),
                "pronoun": (0, 1),
                "ellipsis": (0, 1),
                "shift": (1, 0),
            }[asked.kind]
            earlier = {word for text in spoken[::2] for word in re.findall(r"\w+", text) if word in lexicon.NAMES}
            shifted = None if example.turn == 1 else bool(names)
            assert example.topic_shift is shifted and not (shifted and names[0] in earlier)
            name, attribute = (names or [name])[0], (attributes or [attribute])[0]
            assert example.rewrite == f"What is the {attribute} of {name}?"
            assert example.answer is not None
            assert [passages[passage] for passage in example.gold] == [f"The {attribute} of {name} is {example.answer}"]
            spoken += [example.question, example.answer]
    assert set(counts) == set(lexicon.KINDS) and min(counts.values()) > 40


def test_an_answer_belongs_to_one_passage() -> None:
    facts = small().facts()
    assert len(facts) == 240 == len({fact.value for fact in facts.values()}) == len({f.id for f in facts.values()})


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_answer_finds_the_right_passage(seed: int, tmp_path: Path) -> None:
    """Weak labels from the dialogue alone, without any rewrite, are the gold passages."""
    small(str(tmp_path), seed=seed).run()
    corpus, index = str(tmp_path / "corpus.jsonl"), str(tmp_path / "index")
    BuildIndex(corpus, index, Bm25Config()).run()
    data = str(tmp_path / "train.jsonl")
    labelling = LabelConfig(label_with="context")
    found = LabelPassages(data, corpus, index, str(tmp_path / "cache"), labelling=labelling, progress=False).run()
    labels = {label.example: label.positive for label in found.labels}
    examples = RewriteData(data).read().examples
    assert fmean(labels.get(example.id) in example.gold for example in examples) > 0.97


def test_splits_share_no_opening_and_do_not_depend_on_sizes() -> None:
    splits = small(train=300, test=100).draw()
    openings = {
        split: {tuple(question.text for question in one.questions[:2]) for one in splits[split]}
        for split in MakeRewriteWorld.splits
    }
    assert not openings["train"] & (openings["dev"] | openings["test"]) and not openings["dev"] & openings["test"]
    contexts = {
        split: {e.context for one in splits[split] for e in one.examples()[1:]} for split in MakeRewriteWorld.splits
    }
    assert not contexts["train"] & (contexts["dev"] | contexts["test"])
    assert small(test=10, train=0).draw()["test"] == small().draw()["test"][:10]


def test_files_are_deterministic_and_readable(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        small(str(tmp_path / name), seed=seed).run()
    for file in ("corpus.jsonl", *(f"{split}.jsonl" for split in MakeRewriteWorld.splits), "world.jsonl"):
        texts = [(tmp_path / name / file).read_bytes() for name in "abc"]
        assert texts[0] == texts[1] != texts[2]
    assert (tmp_path / "a/corpus.txt").read_text() == (tmp_path / "c/corpus.txt").read_text()
    passages = [json.loads(line) for line in (tmp_path / "a/corpus.jsonl").read_text().splitlines()]
    assert len(passages) == 240 and set(passages[0]) == {"id", "text"}
    kinds = {row["id"]: row["kinds"] for row in map(json.loads, (tmp_path / "a/world.jsonl").read_text().splitlines())}
    for split in MakeRewriteWorld.splits:
        examples = RewriteData(str(tmp_path / "a" / f"{split}.jsonl")).read().examples
        assert list(examples) == questions_of(small(), split)
        assert all(example.turn <= len(kinds[example.dialogue]) for example in examples)


def test_corpus_covers_every_world() -> None:
    tokenizer = build_tokenizer(small().vocabulary())
    assert len(tokenizer) < 160
    world = small(world=RewriteWorldConfig(names=40))
    texts = [fact.text for fact in world.facts().values()]
    for example in questions_of(world, "train"):
        assert example.rewrite is not None and example.answer is not None
        texts += [example.context, example.rewrite, example.answer]
    for text in texts:
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def naive_bm25(query: str, passages: dict[str, list[str]], k1: float = 0.82, b: float = 0.68) -> dict[str, float]:
    """BM25 written out, over lower-case words."""
    mean = fmean(map(len, passages.values()))
    scores = dict.fromkeys(passages, 0.0)
    for word in re.findall(r"\w+", query.lower()):
        containing = sum(word in words for words in passages.values())
        weight = math.log(1 + (len(passages) - containing + 0.5) / (containing + 0.5))
        for name, words in passages.items():
            count = words.count(word)
            scores[name] += weight * count / (count + k1 * (1 - b + b * len(words) / mean))
    return scores


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_question_and_dialogue_are_clearly_worse_than_the_rewrite(seed: int) -> None:
    """What the world must hold to count: MRR of naive BM25 over the questions that come after another one."""
    world = small(seed=seed)
    passages = {fact.id: re.findall(r"\w+", fact.text.lower()) for fact in world.facts().values()}
    ranks: dict[str, list[float]] = {"question": [], "context": [], "rewrite": []}
    for example in (e for split in ("dev", "test") for e in questions_of(world, split) if e.turn > 1):
        queries = {"question": example.question, "context": example.context, "rewrite": example.rewrite or ""}
        for kind, query in queries.items():
            scores = naive_bm25(query, passages)
            own = scores[example.gold[0]]
            ranks[kind].append(1 / sum(score >= own for score in scores.values()))
    found = {kind: fmean(values) for kind, values in ranks.items()}
    assert found["rewrite"] == 1.0 and found["question"] < 0.4 and found["context"] < 0.45


def test_bad_configurations_are_refused() -> None:
    kinds = {"named": 0.1, "pronoun": 0.4, "ellipsis": 0.3, "shift": 0.2}
    for bad, message in (
        ({"questions": (0, 2)}, r"world\.questions must be 1 or more, lowest first, got \[0, 2\]"),
        ({"questions": (3, 2)}, r"world\.questions"),
        ({"names": 3}, r"world\.names must be 4 \(questions\) to 40, got 3"),
        ({"names": 41}, r"world\.names"),
        ({"attributes": 1}, r"world\.attributes must be 2 to 8, got 1"),
        ({"kinds": {"named": 1.0}}, r"world\.kinds needs a weight"),
        ({"kinds": dict.fromkeys(kinds, 0.0)}, r"world\.kinds needs a weight"),
        ({"kinds": kinds | {"shift": -1.0}}, r"world\.kinds needs a weight"),
    ):
        with pytest.raises(ConfigError, match=message):
            RewriteWorldConfig(**bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dev must be 0 or more, got -1"):
        small(dev=-1)


@pytest.mark.scripts
def test_a_world_is_made(tmp_path: Path) -> None:
    done = run_script("make_rewrite_world", f"output_dir={tmp_path}", "train=3", "dev=0", "test=2")
    assert done.returncode == 0 and "240 passages, questions: " in done.stdout, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "corpus.jsonl",
        "corpus.txt",
        "manifest.json",
        "test.jsonl",
        "train.jsonl",
        "world.jsonl",
    ]
