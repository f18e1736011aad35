"""Consistent sets of remarks: algorithms 1 and 2, the largest set against brute force, and checks of conflicts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.asking import TRIES
from finegrained_rlhf.core.generation.wrappers import MeteredGenerator, ScriptedGenerator
from finegrained_rlhf.personalization import (
    EmbeddedConflicts,
    ExactConflicts,
    FeedbackRemark,
    HashedWords,
    ModelConflicts,
    SourceDocument,
)
from finegrained_rlhf.personalization.prompts import fenced_data
from finegrained_rlhf.personalization.selection import (
    CoresetSelection,
    greedy_coreset,
    largest_coreset,
    recency_coreset,
)

Fits = frozenset[int]
"""A remark in these tests: the documents that fit it. A set is consistent where some document fits all."""


def clash(chosen: Sequence[Fits], remark: Fits) -> bool:
    return not frozenset.intersection(remark, *chosen)


def cases(count: int) -> list[list[Fits]]:
    rng = random.Random(5)
    return [
        [
            frozenset(rng.sample(range(5), rng.randint(0 if rng.random() < 0.1 else 1, 3)))
            for _ in range(rng.randint(1, 8))
        ]
        for _ in range(count)
    ]


def consistent(remarks: Sequence[Fits], places: Sequence[int]) -> bool:
    return bool(frozenset(range(5)).intersection(*(remarks[i] for i in places)))


def brute_force(remarks: Sequence[Fits]) -> tuple[int, ...]:
    """The largest consistent set with the newest remark; of several that which is newer at the first difference."""
    newest = len(remarks) - 1
    for size in range(len(remarks), 0, -1):
        sets = [one for one in combinations(range(len(remarks)), size) if newest in one and consistent(remarks, one)]
        if sets:
            return max(sets, key=lambda one: one[::-1])
    return ()


def test_the_recent_run_is_the_longest_suffix_without_a_conflict() -> None:
    lengths = set()
    for remarks in cases(300):
        found = recency_coreset(remarks, clash)
        begin = len(remarks) - len(found.chosen)
        assert found.chosen == tuple(range(begin, len(remarks)))
        assert not found.chosen or consistent(remarks, found.chosen)
        assert begin == 0 or not consistent(remarks, range(begin - 1, len(remarks)))
        assert found.satisfiable == bool(remarks[-1])
        lengths.add(len(found.chosen))
    assert {0, 1, 2, 3} <= lengths


def test_the_largest_set_is_what_brute_force_finds() -> None:
    differs = 0
    for remarks in cases(300):
        largest, greedy = largest_coreset(remarks, clash), greedy_coreset(remarks, clash)
        assert largest.chosen == brute_force(remarks) and largest.satisfiable == bool(remarks[-1])
        assert greedy.satisfiable == largest.satisfiable and consistent(remarks, greedy.chosen)
        if largest.satisfiable:
            assert len(recency_coreset(remarks, clash).chosen) <= len(largest.chosen) >= len(greedy.chosen)
            differs += len(greedy.chosen) < len(largest.chosen)
    assert differs > 5


def test_where_the_greedy_set_is_not_the_largest() -> None:
    """The remark before the newest fits it, and shuts out two older ones that fit it and each other."""
    remarks: list[Fits] = [frozenset({1}), frozenset({1}), frozenset({2}), frozenset({1, 2})]
    assert greedy_coreset(remarks, clash).chosen == (2, 3) == recency_coreset(remarks, clash).chosen
    assert largest_coreset(remarks, clash).chosen == (0, 1, 3)
    stray: list[Fits] = [frozenset({1}), frozenset({2}), frozenset({1})]
    assert recency_coreset(stray, clash).chosen == (2,) and greedy_coreset(stray, clash).chosen == (0, 2)


def test_what_cannot_be_satisfied_is_said() -> None:
    remarks: list[Fits] = [frozenset({1}), frozenset({1, 2}), frozenset()]
    assert recency_coreset(remarks, clash) == largest_coreset(remarks, clash) == CoresetSelection((), False)
    assert greedy_coreset(remarks, clash) == CoresetSelection((0, 1), False)
    for select in (recency_coreset, greedy_coreset, largest_coreset):
        assert select([], clash) == CoresetSelection((), True)
    assert largest_coreset([frozenset({1})] * 4, clash, limit=3).chosen == (1, 2, 3)  # the newest
    assert len(largest_coreset([frozenset({1})] * 16, clash).chosen) == 16


DOCUMENTS = [
    SourceDocument("1", "Ada studied law in Rome.", {"major": "law", "city": "Rome"}),
    SourceDocument("2", "Ada studied art in Oslo.", {"major": "art", "city": "Oslo"}),
    SourceDocument("3", "Ada studied law in Oslo.", {"major": "law", "city": "Oslo"}),
]
LAW, ART = FeedbackRemark("She studied law.", "major", "law"), FeedbackRemark("She studied art.", "major", "art")
ROME, OSLO = FeedbackRemark("She lives in Rome.", "city", "Rome"), FeedbackRemark("She lives in Oslo.", "city", "Oslo")


def test_exact_conflicts_look_at_documents() -> None:
    check = ExactConflicts()
    assert not check.has_conflict([], LAW, DOCUMENTS) and not check.has_conflict([LAW], OSLO, DOCUMENTS)
    assert check.has_conflict([LAW], ART, DOCUMENTS)
    assert check.has_conflict([ART], ROME, DOCUMENTS)  # two facts, and no document has both
    assert check.has_conflict([], FeedbackRemark("She lives in Bonn.", "city", "Bonn"), DOCUMENTS)
    with pytest.raises(DataError, match="attribute"):
        check.has_conflict([LAW], FeedbackRemark("The other one."), DOCUMENTS)
    with pytest.raises(DataError, match="facts"):
        check.has_conflict([], LAW, [SourceDocument("1", "Ada studied law.")])


def test_a_language_model_is_asked_yes_or_no() -> None:
    def model(reply: Callable[[dict[str, object]], str]) -> ScriptedGenerator:
        return ScriptedGenerator(lambda prompt: json.dumps({"conflict": reply(fenced_data(prompt))}))

    llm = model(lambda data: "yes" if "art" in str(data["remark"]) else "no")
    assert ModelConflicts(llm).has_conflict([LAW, OSLO], ART, DOCUMENTS)
    assert not ModelConflicts(llm).has_conflict([LAW], OSLO, DOCUMENTS)
    data = fenced_data(llm.prompts[0])
    assert data == {
        "documents": [one.text for one in DOCUMENTS],
        "chosen": [LAW.text, OSLO.text],
        "remark": ART.text,
    }
    bare = ModelConflicts(llm, with_documents=False)
    assert bare.has_conflict([LAW], ART, DOCUMENTS) and "documents" not in fenced_data(llm.prompts[-1])
    asked = len(llm.prompts)
    assert not bare.has_conflict([], ART, DOCUMENTS) and len(llm.prompts) == asked  # there is nothing to ask
    odd = MeteredGenerator(model(lambda data: "maybe"))
    assert ModelConflicts(odd).has_conflict([], LAW, DOCUMENTS) and odd.expense.odd == TRIES  # it is not shown


def test_vectors_that_are_far_apart_are_a_conflict() -> None:
    words = HashedWords()
    other = FeedbackRemark("Nothing like that")
    assert EmbeddedConflicts(words, 0.5).has_conflict([LAW], other, DOCUMENTS)
    assert not EmbeddedConflicts(words, 0.5).has_conflict([], other, DOCUMENTS)
    assert not EmbeddedConflicts(words, 0.5).has_conflict([LAW], ART, DOCUMENTS)  # alike in words, and contradictory
    assert EmbeddedConflicts(words, 0.9).has_conflict([LAW], ART, DOCUMENTS)
    with pytest.raises(ConfigError):
        EmbeddedConflicts(words, 1.5)
