"""What is true of any answer in an InscitWorld: the facts it states, what supports them, what it covers.

Its measures of an answer are those that people rate in the thesis (section 5.6): factual consistency, evidence utility,
comprehensiveness.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from finegrained_lab.worlds.inscit.grammar import Statement, folded_sentences, read_statements
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.factworld.base import TRUTH

PASSAGE_TRUTH = "truth.json"


@dataclass(frozen=True)
class TurnTruth:
    """What is true of a turn.

    Attributes:
        asked: the facts that satisfy the question.
        labels: what each annotator's answer states.
    """

    asked: tuple[Statement, ...]
    labels: tuple[tuple[Statement, ...], ...]


@dataclass(frozen=True)
class OracleJudgement:
    """What is true of an answer.

    Attributes:
        statements: what it states or offers, each once.
        unread: its sentences that the grammar does not know, beside the one that it found nothing.
        true: of the statements, how many hold in the world.
        supported: of the statements, how many a predicted passage states.
        predicted: passages, each once.
        used: of them, how many state something that the answer states.
        coverage: of what a label states, the share that the answer states too, with the same values; of the label that
            it covers best. A label that states nothing is covered by an answer that states nothing.
        comprehensiveness: of the facts that satisfy the question, the share that the answer tells, or offers as an
            option; None where there are none.
    """

    statements: tuple[Statement, ...]
    unread: int
    true: int
    supported: int
    predicted: int
    used: int
    coverage: float
    comprehensiveness: float | None

    @property
    def consistency(self) -> float | None:
        """FC: the share of statements that a predicted passage states; None for an answer that states nothing."""
        return self.supported / len(self.statements) if self.statements else None

    @property
    def utility(self) -> float | None:
        """EU: the share of predicted passages that the answer uses; None where none is predicted."""
        return self.used / self.predicted if self.predicted else None


class InscitOracle:
    """The truth about the passages and turns of a world.

    Args:
        passages: what each passage states, by its id.
        turns: the truth about each turn, by conversation and number from 1.
    """

    def __init__(self, passages: Mapping[str, Sequence[Statement]], turns: Mapping[tuple[str, int], TurnTruth]) -> None:
        self._passages = {name: tuple(fact.folded for fact in facts) for name, facts in passages.items()}
        self._turns = dict(turns)
        self._world = {fact for facts in self._passages.values() for fact in facts}
        self._known: dict[Statement, bool] = {}

    @classmethod
    def load(cls, directory: str | Path) -> InscitOracle:
        """The oracle of a world's directory.

        Raises:
            DataError: a truth file is missing or damaged.
        """
        try:
            truth = read_json(Path(directory) / PASSAGE_TRUTH)
            passages = {name: statements_from(rows) for name, rows in truth["passages"].items()}
            turns = {
                (row["id"], number): TurnTruth(
                    statements_from(turn["asked"]), tuple(statements_from(label) for label in turn["labels"])
                )
                for row in read_jsonl(Path(directory) / TRUTH)
                for number, turn in enumerate(row["turns"], start=1)
            }
        except (KeyError, TypeError, AttributeError):
            raise DataError("is no truth of an InscitWorld; make the world again", file=directory) from None
        return cls(passages, turns)

    def judge(self, conversation: str, turn: int, response: str, evidence: Collection[str]) -> OracleJudgement:
        """What is true of an answer.

        Args:
            conversation: id of the conversation.
            turn: its number, from 1.
            response: the words of the answer, any text.
            evidence: ids of the predicted passages; one that does not exist states nothing.

        Raises:
            DataError: the world has no such turn.
        """
        if (conversation, turn) not in self._turns:
            raise DataError(f"the world has no turn {turn} of conversation {conversation!r}")
        truth, statements = self._turns[conversation, turn], read_statements(response)
        passages = [self._passages.get(name, ()) for name in dict.fromkeys(evidence)]
        silent = not statements
        unread = sum(not read_statements(part) and not part.startswith("sorry") for part in folded_sentences(response))
        return OracleJudgement(
            statements=tuple(statements),
            unread=unread,
            true=sum(self._holds(one) for one in statements),
            supported=sum(any(_states(facts, one) for facts in passages) for one in statements),
            predicted=len(passages),
            used=sum(any(_states(facts, one) for one in statements) for facts in passages),
            coverage=max(
                self._coverage(label, statements, offers=False) if label else float(silent) for label in truth.labels
            ),
            comprehensiveness=self._coverage(truth.asked, statements, offers=True) if truth.asked else None,
        )

    def supports(self, statement: Statement, evidence: Collection[str]) -> bool:
        """Whether one of these passages states it; a passage that does not exist states nothing."""
        return any(_states(self._passages.get(name, ()), statement.folded) for name in evidence)

    def _holds(self, statement: Statement) -> bool:
        if statement not in self._known:
            self._known[statement] = _states(self._world, statement)
        return self._known[statement]

    def _coverage(self, wanted: Sequence[Statement], statements: Sequence[Statement], offers: bool) -> float:
        """The share of wanted statements that are made. Where `offers` count, an option makes one that has a value."""
        return fmean(float(any(self._makes(one, item.folded, offers) for one in statements)) for item in wanted)

    def _makes(self, statement: Statement, wanted: Statement, offers: bool) -> bool:
        if not _same(statement.option, wanted.option):
            return False
        if not statement.value:
            return offers or not wanted.value
        return statement.value == wanted.value if wanted.value else self._holds(statement)


JUDGED_MEASURES: Mapping[str, Callable[[OracleJudgement], float | None]] = {
    "consistency": lambda one: one.consistency,
    "utility": lambda one: one.utility,
    "coverage": lambda one: one.coverage,
    "comprehensiveness": lambda one: one.comprehensiveness,
    "true": lambda one: one.true / len(one.statements) if one.statements else None,
    "silent": lambda one: float(not one.statements),
    "without_evidence": lambda one: float(not one.predicted),
    "unread": lambda one: float(one.unread > 0),
}
"""What is counted of each answer; None where it has no value. `mean_judgement` says what they are."""


def mean_judgement(judgements: Iterable[OracleJudgement]) -> dict[str, float | int | None]:
    """Means over turns, of those that have a value: shares in [0, 1].

    `consistency` (FC), `utility` (EU), `coverage`, `comprehensiveness`, `true` (of statements), and the shares of turns
    that state nothing (`silent`), predict no passage (`without_evidence`) or say what the grammar does not know
    (`unread`); `turns` is their number.
    """
    every = list(judgements)
    return {
        "turns": len(every),
        **{name: _mean(measure(one) for one in every) for name, measure in JUDGED_MEASURES.items()},
    }


def statement_rows(statements: Iterable[Statement]) -> list[list[str]]:
    """Statements as JSON values: kind, name, attribute, period, value."""
    return [[one.kind, one.name, one.attribute, one.period, one.value] for one in statements]


def statements_from(rows: Sequence[Sequence[Any]]) -> tuple[Statement, ...]:
    """The same again."""
    return tuple(Statement(*row) for row in rows)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _states(facts: Collection[Statement], statement: Statement) -> bool:
    """Whether facts hold a statement; an option holds where one of any value does."""
    if statement.kind and statement.value and isinstance(facts, set):
        return statement in facts
    return any(_same(statement, fact) for fact in facts)


def _same(statement: Statement, fact: Statement) -> bool:
    """Whether what is said is a fact; what it leaves open, kind or value, fits any."""
    return (
        statement.attribute == fact.attribute
        and statement.name == fact.name
        and statement.period == fact.period
        and statement.kind in ("", fact.kind)
        and statement.value in ("", fact.value)
    )
