"""InscitWorld's oracle: gold is perfect, and each kind of error costs what it should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from finegrained_lab.published.inscit.data import read_inscit, turns_of
from finegrained_lab.worlds.inscit import ArticleConfig, InscitOracle, MakeInscitWorld
from finegrained_lab.worlds.inscit.grammar import (
    PASSAGE_SENTENCES,
    Statement,
    offered,
    read_statements,
    related,
    told,
)
from finegrained_lab.worlds.inscit.oracle import TurnTruth, mean_judgement
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.inscit.conversation import NO_INFORMATION

OWNER = Statement("town", "Arden Ulver", "owner", "early", "old tailor")
LATER = Statement("town", "Arden Ulver", "owner", "late", "new lawyer")
ALLY = Statement("ship", "Arden Ulver", "partner", "late", "club Borin Varna")
TOPICS = tuple(Statement("town", "Arden Ulver", "topics", "", topic) for topic in ("history", "trade", "people"))
PASSAGES = {"A:0": TOPICS, "A:2": (OWNER,), "A:3": (LATER,), "B:2": (ALLY,)}
TURNS = {
    ("c", 1): TurnTruth((OWNER, LATER), ((OWNER, LATER), (OWNER.option, LATER.option))),
    ("c", 2): TurnTruth((), ((),)),
    ("c", 3): TurnTruth(TOPICS, (TOPICS,)),
}
ORACLE = InscitOracle(PASSAGES, TURNS)


def folded(*statements: Statement) -> list[Statement]:
    return [statement.folded for statement in statements]


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        (told([OWNER]), folded(OWNER)),
        (told([OWNER, LATER, ALLY]), folded(OWNER, LATER, ALLY)),
        (told(TOPICS), folded(*TOPICS)),
        (told(TOPICS[:1]), folded(*TOPICS[:1])),
        (related("the late period", [OWNER]), folded(OWNER)),
        (offered([OWNER.option, LATER.option]), folded(OWNER.option, LATER.option)),
        (offered([OWNER.option, ALLY.option]), folded(OWNER.option, Statement("ship", "Arden Ulver", "owner", "late"))),
        (offered([TOPICS[0].option]), folded(TOPICS[0].option)),
        (NO_INFORMATION, []),
        ("", []),
        ("the owner of the town arden ulver in the early period was the old tailor .", folded(OWNER)),
        ("The owner of Arden Ulver in the early period was the old tailor", folded(replace(OWNER, kind=""))),
        ("The owner of the town Arden Ulver was the old tailor.", []),
        (f"{told([OWNER])} {told([OWNER])}", folded(OWNER)),
    ],
)
def test_what_a_text_states(text: str, statements: list[Statement]) -> None:
    assert read_statements(text) == statements


@pytest.mark.parametrize("sentence", PASSAGE_SENTENCES)
def test_sentences_of_passages_are_read(sentence: str) -> None:
    for fact in (OWNER, ALLY):
        text = sentence.format(
            attribute=fact.attribute, entity=f"the {fact.entity}", period=fact.period, value=fact.value
        )
        assert read_statements(text) == [fact.folded]


def test_gold_answers_with_gold_evidence_are_perfect(tmp_path: Path) -> None:
    MakeInscitWorld(str(tmp_path), train=60, dev=10, test=10, articles=ArticleConfig(60)).run()
    oracle, judged = InscitOracle.load(tmp_path), 0
    for split in ("train", "dev", "test"):
        for turn in turns_of(read_inscit(tmp_path / f"{split}.json").conversations):
            for label in turn.labels:
                found = oracle.judge(turn.conversation, turn.number, label.response, label.passages)
                expected = 1.0 if label.evidence else None
                assert (found.consistency, found.utility, found.coverage) == (expected, expected, 1.0)
                assert found.true == len(found.statements) and not found.unread
                judged += 1
                if len(label.passages) > 1:
                    less = sorted(label.passages)[1:]
                    fewer = oracle.judge(turn.conversation, turn.number, label.response, less)
                    assert fewer.consistency is not None and fewer.consistency < 1.0 and fewer.utility == 1.0
    assert judged > 600


def test_a_fact_without_its_passage_lowers_consistency() -> None:
    both = told([OWNER, LATER])
    assert ORACLE.judge("c", 1, both, ["A:2", "A:3"]).consistency == 1.0
    half = ORACLE.judge("c", 1, both, ["A:2"])
    assert (half.consistency, half.utility, half.coverage, half.true) == (0.5, 1.0, 1.0, 2)
    assert ORACLE.judge("c", 1, both, []).consistency == 0.0


def test_a_passage_that_is_not_used_lowers_utility() -> None:
    found = ORACLE.judge("c", 1, told([OWNER]), ["A:2", "A:3", "B:2", "no such passage"])
    assert (found.consistency, found.utility, found.predicted) == (1.0, 0.25, 4)
    assert ORACLE.judge("c", 1, told([OWNER]), ["A:2", "A:2"]).predicted == 1


def test_coverage_takes_the_best_label_and_asks_for_its_values() -> None:
    wrong = told([Statement("town", "Arden Ulver", "owner", "early", "new lawyer")])
    options = offered([OWNER.option, LATER.option])
    assert ORACLE.judge("c", 1, told([OWNER]), []).coverage == 0.5
    assert ORACLE.judge("c", 1, options, []).coverage == 1.0
    assert ORACLE.judge("c", 1, wrong, ["A:2"]).coverage == 0.0
    false = ORACLE.judge("c", 1, wrong, ["A:2"])
    assert (false.consistency, false.utility, false.true) == (0.0, 0.0, 0)


def test_comprehensiveness_counts_what_satisfies_the_question() -> None:
    wrong = told([Statement("town", "Arden Ulver", "owner", "early", "new lawyer")])
    options = offered([OWNER.option, LATER.option])
    for text, share in ((told([OWNER]), 0.5), (told([OWNER, LATER]), 1.0), (options, 1.0), (wrong, 0.0), ("", 0.0)):
        assert ORACLE.judge("c", 1, text, []).comprehensiveness == share
    assert ORACLE.judge("c", 3, told(TOPICS[:2]), []).comprehensiveness == pytest.approx(2 / 3)
    assert ORACLE.judge("c", 3, offered([TOPICS[0].option]), ["A:0"]).consistency == 1.0


def test_where_nothing_is_known_silence_is_right() -> None:
    silent = ORACLE.judge("c", 2, NO_INFORMATION, [])
    assert (silent.consistency, silent.utility, silent.coverage, silent.comprehensiveness) == (None, None, 1.0, None)
    assert ORACLE.judge("c", 2, told([OWNER]), ["A:2"]).coverage == 0.0
    assert ORACLE.judge("c", 2, "It is what it is.", []).unread == 1


def test_means_leave_out_what_has_no_value() -> None:
    judged = [ORACLE.judge("c", 1, told([OWNER]), ["A:2"]), ORACLE.judge("c", 2, NO_INFORMATION, [])]
    found = mean_judgement(judged)
    assert (found["turns"], found["consistency"], found["coverage"], found["silent"]) == (2, 1.0, 0.75, 0.5)
    assert mean_judgement([])["consistency"] is None


def test_a_turn_that_the_world_lacks_and_a_directory_without_truth_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no turn 9"):
        ORACLE.judge("c", 9, "", [])
    with pytest.raises(DataError):
        InscitOracle.load(tmp_path)
    (tmp_path / "truth.json").write_text("[]")
    with pytest.raises(DataError, match="no truth"):
        InscitOracle.load(tmp_path)
