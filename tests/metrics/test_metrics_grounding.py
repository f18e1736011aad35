"""Measures without a judge: what is recalled, what has no source, what is copied."""

from __future__ import annotations

import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.inference.config import oracle_rates
from finegrained_rlhf.metrics.grounding import JudgeFree, Statements, copied, facts_recalled, facts_unsupported
from finegrained_rlhf.text.facts import facts_of

QUESTION = "who sang i can't tell you why by the eagles?"
GOLD = "It was sung by Timothy Bruce Schmit of the Eagles on 24 September 1979, with two others."
PASSAGE = "The song was sung by Timothy B. Schmit in September 1979 and reached number 8 with 1,200 copies sold a day."


@pytest.mark.parametrize(
    ("fact", "text", "stated"),
    [
        ("by Timothy Bruce Schmit", "sung by Timothy B. Schmit", True),
        ("by Timothy Bruce Schmit", "sung by Schmit, by Schmit", True),
        ("by Timothy Bruce Schmit", "sung by timothy bruce schmit's band", True),
        ("by Timothy Bruce Schmit", "sung by Bernd Schmit", False),
        ("in New York", "in New Jersey", False),
        ("by Frey of the Eagles", "by Glenn Frey, of Eagles", True),
        ("by Frey of the Eagles", "by the Eagles", False),
        ("by Beyoncé", "by Beyonce", True),
        ("on 2 May 2018", "on May 2, 2018", True),
        ("on 2 May 2018", "in May 2018", False),
        ("in May 2018", "on 2 May 2018", True),
        ("in 2018", "on 2 May 2018", True),
        ("of 12,000 people", "of 12000 people", True),
        ("of two people", "of 2 people", True),
        ("of 12 people", "of 120 people", False),
    ],
)
def test_what_states_the_same(fact: str, text: str, stated: bool) -> None:
    (one,) = facts_of(fact)
    assert (one in Statements([text])) is stated


def test_facts_of_the_question_are_no_news() -> None:
    assert facts_recalled("By the Eagles.", [GOLD], QUESTION) == (0, 3)  # the song's is no news either
    assert facts_recalled(
        "By Schmit of the Eagles, by Schmit, on September 24, 1979, and 2 more.", [GOLD], QUESTION
    ) == (3, 3)
    assert facts_recalled("anything", ["no fact here"], QUESTION) == facts_recalled("anything", [], QUESTION) == (0, 0)


def test_of_several_gold_answers_the_best_recalled_counts() -> None:
    assert facts_recalled("In 1979.", ["By Don Henley.", "In 1979.", "no fact"], QUESTION) == (1, 1)


def test_facts_that_no_passage_has() -> None:
    assert facts_unsupported("By Don Henley in 1979, at number 8, with 1,300 sold.", [PASSAGE]) == (2, 4)
    assert facts_unsupported("By Don Henley.", []) == (1, 1)
    assert facts_unsupported("", [PASSAGE]) == (0, 0)


def test_copied_runs_stay_inside_a_passage() -> None:
    copy = PASSAGE.split(" and ")[0]
    words = len(copy.replace("B.", "B").split())
    assert copied(copy, [PASSAGE]) == (words, words, words)
    assert copied(f"Well, {copy}", [PASSAGE, "well the song"]) == (words, words + 1, words)
    assert copied("a b c d e f", ["a b c", "d e f"]) == (0, 6, 0)
    assert copied("", [PASSAGE]) == (0, 0, 0)
    assert copied("a b c", ["a b c"]) == (0, 3, 0)


def test_rates_are_over_all_responses_and_prompts_without_passages_are_refused() -> None:
    known = {"question": QUESTION, "passages": (Passage("", "Eagles", (PASSAGE,)),), "references": (GOLD,)}
    prompts = [Prompt("a", "", (), known), Prompt("b", "", (), {**known, "references": ()})]
    monitor = JudgeFree()
    monitor.check_prompts(prompts)
    rates = oracle_rates([monitor.counts(prompts, ["By Schmit of the Eagles.", "By Don Henley, and Glenn Frey"])])
    assert rates == {
        "facts/recalled": pytest.approx(1 / 3),
        "facts/unsupported": pytest.approx(2 / 3),
        "copied/share": 0.0,
        "copied/longest": 0.0,
        "repeats": 0.0,
    }
    assert monitor.counts([], []).keys() == rates.keys()
    with pytest.raises(DataError, match="passages of each prompt"):
        monitor.check_prompts([Prompt("c", "", (), {"question": QUESTION})])
