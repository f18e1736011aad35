"""What is searched for in a turn, what a classifier reads of it, and what is read from what a reader says."""

from __future__ import annotations

from typing import Any

import pytest

from finegrained_rlhf.inscit.conversation import (
    NO_INFORMATION,
    EvidencePassage,
    evidence_query,
    evidence_text_of,
    joint_target,
    read_joint,
)

CONTEXT = ("who made it", "a goat", "and when")


def test_ways_to_ask() -> None:
    asked: dict[Any, str] = {
        "last_turn": "and when",
        "recent": "who made it a goat and when",
        "context": "who made it a goat and when",
        "first_last": "who made it and when",
        "turns": "who made it [SEP] a goat [SEP] and when",
        "recent_turns": "who made it [SEP] a goat [SEP] and when",
    }
    assert {kind: evidence_query(CONTEXT, kind) for kind in asked} == asked
    assert evidence_query(CONTEXT[:1], "first_last") == "who made it"
    assert evidence_query(("and where", "here", *CONTEXT), "recent") == "who made it a goat and when"
    assert evidence_query(("and where", "here", *CONTEXT), "recent_turns") == asked["turns"]


def test_what_a_classifier_reads_is_the_newest_first_and_a_passage_once() -> None:
    goat = EvidencePassage("Goat:2", "Goats give milk.", ("Goat", "Use"))
    assert evidence_text_of(CONTEXT, [goat, goat]).split("\n") == [
        "user: and when",
        "evidence: Goat | Use: Goats give milk.",
        "agent: a goat",
        "user: who made it",
    ]


@pytest.mark.parametrize(
    ("text", "response", "evidence", "unknown", "repeated", "answered"),
    [
        (joint_target("It is milk.", ["b c:2", "a:1", "a:1"]), "It is milk.", ("a:1", "b c:2"), 0, 0, True),
        ("evidence: b  c : 2|a:1 answer:x", "x", ("b c:2", "a:1"), 0, 0, True),
        ("evidence: a:1 | z:9 | a:1 answer: y", "y", ("a:1",), 1, 1, True),
        (joint_target("Sorry.", []), "Sorry.", (), 0, 0, True),
        ("evidence: a:1 | b c:2", NO_INFORMATION, ("a:1", "b c:2"), 0, 0, False),
        ("no such thing", NO_INFORMATION, (), 0, 0, False),
        ("answer: the answer: 5\nof them", "the answer: 5\nof them", (), 0, 0, True),
        ("", NO_INFORMATION, (), 0, 0, False),
    ],
)
def test_what_a_reader_said_is_taken_apart(
    text: str, response: str, evidence: tuple[str, ...], unknown: int, repeated: int, answered: bool
) -> None:
    said = read_joint(text, ["a:1", "b c:2"])
    assert (said.response, said.evidence) == (response, evidence)
    assert (said.unknown, said.repeated, said.answered) == (unknown, repeated, answered)


def test_ids_that_differ_in_white_space_alone_are_told_apart() -> None:
    for given in (["Sky Net:1", "SkyNet:1"], ["SkyNet:1", "Sky Net:1"]):
        said = read_joint("evidence: SkyNet:1 answer: It is.", given)
        assert said.evidence == ("SkyNet:1",) and read_joint("evidence: Sky  Net:1 answer: x", given).evidence == (
            "Sky Net:1",
        )
        assert read_joint("evidence: S k yNet:1 answer: x", given).evidence == (given[0],)
