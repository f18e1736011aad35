"""Which passages are gold for a turn of TREC: those judged relevant, or those that the topics name as its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

UNJUDGED = "no relevant passage judged"


def gold_of(
    name: str,
    judged: Mapping[str, Mapping[str, int]] | None,
    min_relevance: int,
    named: Sequence[str],
    notes: Counter[str],
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The gold passages of a turn and the grades above 0 of all its judged passages.

    Args:
        name: of the turn, as in the judgements.
        judged: grades by turn and passage; None where there are none.
        min_relevance: the lowest grade that makes a passage gold.
        named: passages that the topics themselves name; gold without judgements.
        notes: counts turns of which no passage is judged relevant.
    """
    if judged is None:
        return tuple(dict.fromkeys(named)), {}
    grades = {key: grade for key, grade in judged.get(name, {}).items() if grade > 0}
    gold = relevant_of(grades, min_relevance)
    notes[UNJUDGED] += not gold
    return gold, grades


def relevant_of(grades: Mapping[str, int], min_relevance: int = 1) -> tuple[str, ...]:
    """Ids of the passages whose grade is at least `min_relevance`, best grade first, equal ones by id."""
    return tuple(
        passage for _, passage in sorted((-grade, key) for key, grade in grades.items() if grade >= min_relevance)
    )
