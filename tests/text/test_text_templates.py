import json
import re
import string
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_samples import TEXTS

from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_examples
from finegrained_rlhf.text.scores import bag_f1, exact_match, normalise, token_f1
from finegrained_rlhf.text.templates import (
    completeness_input,
    context_text,
    factuality_input,
    relevance_input,
    squeeze,
    task_text,
)

PASSAGES = [Passage("", "A lake", ("It is wide.", "It is cold.")), Passage("", "B", ("Nothing.",))]


def test_task_text_by_hand() -> None:
    assert task_text("How wide?", PASSAGES) == (
        "question: How wide? context: wikipage: A lake text: It is wide. It is cold. | wikipage: B text: Nothing."
    )
    assert task_text("How wide?", []) == "question: How wide? context: "


def test_task_text_rebuilds_the_published_text(shared_data: Path) -> None:
    raw = json.loads((shared_data / "qa_feedback/dev.json").read_text(encoding="utf-8"))
    examples = read_examples(shared_data / "qa_feedback/dev.json")
    assert len(examples) == 400
    for row, example in zip(raw, examples, strict=True):
        assert task_text(example.question, example.passages) == row["text"] == example.text


def test_reward_model_inputs_by_hand() -> None:
    assert " ".join(relevance_input("How  wide?", ["Very wide,", "it\nseems."], "</s>")) == (
        "question: How wide? answer: </s> Very wide, </s> it seems."
    )
    pieces = factuality_input("How wide?", context_text(PASSAGES), ["Very wide."], "<sep>")
    assert pieces[1::2] == ["<sep>"]
    assert " ".join(pieces) == f"{task_text('How wide?', PASSAGES)} answer: <sep> Very wide."
    assert relevance_input("Q", [], "</s>") == ["question: Q answer:"]
    assert completeness_input(task_text("Q", PASSAGES[1:]), " An\n answer ") == (
        "question: Q context: wikipage: B text: Nothing. answer: An answer"
    )


@given(st.lists(TEXTS.filter(str.strip), max_size=5), TEXTS)
def test_separator_positions(segments: list[str], question: str) -> None:
    pieces = relevance_input(question, segments, "</s>")
    assert pieces[1::2] == ["</s>"] * len(segments)
    assert pieces[2::2] == [squeeze(segment) for segment in segments]


def squad_f1(first: str, second: str) -> float:
    """SQuAD's evaluation written out naively: precision and recall over a list that is used up."""

    def words(text: str) -> list[str]:
        text = "".join(c for c in text.lower() if c not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    a, b = words(first), words(second)
    if not a or not b:
        return float(a == b)
    left, same = list(b), 0
    for word in a:
        if word in left:
            left.remove(word)
            same += 1
    precision, recall = same / len(a), same / len(b)
    return 2 * precision * recall / (precision + recall) if same else 0.0


def test_token_f1_by_hand() -> None:
    assert normalise("The  Lake, (a wide one)!") == "lake wide one"
    assert token_f1("the lake is wide", "a wide, wide lake") == pytest.approx(2 * 2 / 6)
    assert token_f1("", "the") == 1.0 and token_f1("", "x") == 0.0 and token_f1("x", "") == 0.0
    assert bag_f1(["x", "x"], ["x"]) == pytest.approx(2 / 3)
    assert exact_match("The lake.", "lake") and not exact_match("lake", "lakes")


@given(TEXTS, TEXTS)
def test_token_f1_equals_squad(first: str, second: str) -> None:
    assert token_f1(first, second) == pytest.approx(squad_f1(first, second))
    assert token_f1(first, second) == token_f1(second, first)
    assert token_f1(first, first) == 1.0
    assert bag_f1(first.split(), second.split()) <= 1.0
    assert (Counter(first.split()) == Counter(second.split())) == (bag_f1(first.split(), second.split()) == 1.0)
