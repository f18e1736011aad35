"""Scores of identified knowledge against SQuAD v2's definition, groups by hand, and BM25 by hand."""

from __future__ import annotations

import collections
import random
import re
import string

import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.scores import (
    KnowledgeScore,
    length_edges,
    score_answer,
    summaries,
    summary,
)
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn

# The definition of the SQuAD v2 evaluation, written from its description: normalised answers, their tokens in common.


def squad_normal(answer: str) -> str:
    letters = [letter for letter in answer.lower() if letter not in set(string.punctuation)]
    tokens = re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", "".join(letters)))
    return " ".join(token for token in tokens if token)


def squad_f1(gold: str, answer: str) -> float:
    gold_tokens, tokens = squad_normal(gold).split(), squad_normal(answer).split()
    if not gold_tokens or not tokens:
        return float(gold_tokens == tokens)
    left = collections.Counter(gold_tokens)
    same = 0
    for token in tokens:
        if left[token] > 0:
            left[token] -= 1
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(tokens), same / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


def example(
    passages: tuple[Passage, ...], gold: tuple[Knowledge, ...], turns: int = 1, **more: bool
) -> DialogueExample:
    said = tuple(Turn("agent" if i % 2 else "user", "What is the color?") for i in range(turns))
    return DialogueExample("x", said, passages, gold, **more)


PIECES = ["the", "A", "an", "Red,", "red", "mill!", "(old)", "é", "—", "3.5", "-", "theme", "\n", "it's", "."]


def test_scores_equal_squads_on_random_texts() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        golds = [" ".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 3))]
        answer = rng.choice([*golds, " ".join(rng.choices(PIECES, k=rng.randint(0, 6)))])
        if rng.random() < 0.3:
            answer = f" {answer.upper()} !"
        spans = tuple(gold if gold.strip() else "the" for gold in golds)
        passage = Passage("p", "", spans)
        scored = score_answer(example((passage,), tuple(Knowledge(0, i, i) for i in range(len(spans)))), 0, answer)
        references = [span.strip() for span in spans]
        assert scored.exact == max(float(squad_normal(gold) == squad_normal(answer)) for gold in references)
        assert scored.f1 == pytest.approx(max(squad_f1(gold, answer) for gold in references), abs=1e-12)


def test_empty_texts_match_and_runs_of_spans_are_joined() -> None:
    passages = (Passage("a", "", ("The.", "Red mill. ", "Old inn.")), Passage("b", "", ("x",)))
    assert score_answer(example(passages, (Knowledge(0, 0, 0),)), 1, "") == KnowledgeScore(1.0, 1.0, 0.0)
    both = example(passages, (Knowledge(0, 1, 2),))
    assert score_answer(both, 0, "red mill old inn") == KnowledgeScore(1.0, 1.0, 1.0)
    assert score_answer(both, 0, "the red mill.").f1 == pytest.approx(2 * 1 * 0.5 / 1.5)
    with pytest.raises(DataError, match="record x, field gold"):
        score_answer(example(passages, ()), 0, "x")


def test_groups_by_hand() -> None:
    passage = (Passage("p", "", ("x",)),)
    gold = (Knowledge(0, 0, 0),)
    good, bad = KnowledgeScore(1.0, 1.0, 1.0), KnowledgeScore(0.0, 0.5, 0.0)
    rows = [
        (example(passage, gold, 3, unseen=False), good, 500),
        (example(passage, gold, 5, unseen=True), bad, 501),
        (example(passage, gold, 7), bad, 1001),
        (example(passage, gold, 9, unseen=True), good, 10),
    ]
    groups = summaries(*map(list, zip(*rows, strict=True)), length_edges("jsonl"))  # type: ignore[arg-type, call-arg]
    assert groups["all"] == {"examples": 4, "exact_match": 0.5, "f1": 0.75, "passage_accuracy": 0.5}
    counts = {name: values["examples"] for name, values in groups.items()}
    assert counts == {
        "all": 4,
        "seen": 1,
        "unseen": 2,
        "context/short": 1,
        "context/medium": 1,
        "context/long": 2,
        "document/short": 2,
        "document/medium": 1,
        "document/long": 1,
    }
    assert groups["all"]["f1"] == groups["unseen"]["f1"] == 0.75 and groups["context/medium"]["exact_match"] == 0.0
    assert summary([])["f1"] == 0.0
