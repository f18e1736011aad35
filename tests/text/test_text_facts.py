"""Names, numbers and dates by rules: where they stand, and what is none."""

from __future__ import annotations

import pytest

from finegrained_rlhf.text.facts import facts_of
from finegrained_rlhf.text.trivial import best_sentence, cut_lead


def kinds(text: str, context: str = "") -> list[tuple[str, str]]:
    facts = facts_of(text, context)
    assert all(text[fact.start : fact.end] == fact.text for fact in facts)
    return [(fact.kind, fact.text) for fact in facts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is by L. Frank Baum.", [("name", "L. Frank Baum")]),
        ("It is set in the Wizard of Oz. Larry Semon made it.", [("name", "Wizard of Oz"), ("name", "Larry Semon")]),
        ("It is by Frey and Don Henley. Frey left.", [("name", name) for name in ("Frey", "Don Henley", "Frey")]),
        ("On 2 May 2018 and August 31, 2019.", [("date", "2 May 2018"), ("date", "August 31, 2019")]),
        ("It sold 103,412.5 of 12 in 1949.", [("number", "103,412.5"), ("number", "12"), ("date", "1949")]),
        ("This may be so.", []),
        ("", []),
    ],
)
def test_facts_stand_where_their_words_do(text: str, expected: list[tuple[str, str]]) -> None:
    assert kinds(text) == expected


def test_a_word_that_begins_a_sentence_is_a_name_where_it_is_one_elsewhere() -> None:
    assert kinds("Schmit sang.") == []
    assert kinds("Schmit sang.", "It was written by Schmit.") == [("name", "Schmit")]


def test_hostile_text_takes_no_time() -> None:
    for text in ("A" * 50_000, "A. " * 20_000, "1," * 30_000, "of the " * 20_000, "\x00İ\u202e" * 1_000):
        facts_of(text)


def test_trivial_answers_come_from_the_passages_alone() -> None:
    passages = [
        "",
        'Why I Sang\n\nThe Eagles are a band. They sang "Why." In 1979 Schmit sang I Can\'t Tell You Why.',
        "You why.",
    ]
    assert cut_lead(passages, 6) == "Why I Sang The Eagles are"
    assert best_sentence("who sang i can't tell you why?", passages) == "In 1979 Schmit sang I Can't Tell You Why."
    assert best_sentence("nothing shared", passages) == "You why."
    assert cut_lead([" "]) is best_sentence("q", []) is cut_lead([]) is None
