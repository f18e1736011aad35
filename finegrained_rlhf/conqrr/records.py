"""Records of query rewriting: a turn of a dialogue, and its weak label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import PART_SEPARATOR


@dataclass(frozen=True)
class RewriteExample:
    """A question in a dialogue.

    Attributes:
        id: unique in its file, `DIALOGUE_TURN`.
        dialogue: id of the dialogue.
        turn: number of the question in its dialogue, from 1.
        history: what was said before, oldest first: question, answer, question, answer, …; an answer may be empty
            where it is not known.
        question: the question as it was asked. A dialogue's first question is already replaced by its rewrite where
            there is one, here and in `history`.
        rewrite: the human's rewrite, which stands alone; None where there is none.
        answer: the answer to the question, None where there is none.
        gold: ids of the passages that answer it; empty where they are not known.
        source: where the dialogue comes from (QReCC: quac, nq, trec), "" where it is not known.
        topic_shift: whether the question leaves the topic of the turn before it; None where it is not known.
        grades: how relevant judged passages are, 1 or more, by id, where the data has grades: of every gold passage,
            and of passages that are too little relevant to be gold. nDCG uses them; empty: each gold passage counts 1.
        published: what the published record has, oldest first: what the dialogue is about, where it says so, turns and
            question as they were asked, before any was replaced; empty where nothing was replaced or left out.
    """

    id: str
    dialogue: str
    turn: int
    history: tuple[str, ...]
    question: str
    rewrite: str | None = None
    answer: str | None = None
    gold: tuple[str, ...] = ()
    source: str = ""
    topic_shift: bool | None = None
    grades: Mapping[str, int] = field(default_factory=dict, hash=False)
    published: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise DataError("expected a question, got blank text", record=self.id, field="question")
        if self.turn < 1:
            raise DataError(f"expected a turn from 1, got {self.turn}", record=self.id, field="turn")
        if low := [passage for passage, grade in self.grades.items() if grade < 1]:
            raise DataError(f"expected grades from 1, got {self.grades[low[0]]}", record=self.id, field="grades")
        if self.grades and (without := [passage for passage in self.gold if passage not in self.grades]):
            problem = f"expected a grade of each gold passage, {without[0]!r} has none"
            raise DataError(problem, record=self.id, field="grades")

    @property
    def turns(self) -> tuple[str, ...]:
        """The question and what was said before it, newest first; unknown answers are left out."""
        return (self.question, *(text for text in reversed(self.history) if text.strip()))

    @property
    def context(self) -> str:
        """The policy's input: `u_n [SEP] u_{n-1} [SEP] … u_1`, newest first (thesis, section 4.2)."""
        return PART_SEPARATOR.join(self.turns)


@dataclass(frozen=True)
class PassageLabel:
    """Which passage should be found for a question, and one that should not.

    Attributes:
        example: id of the question.
        positive: id of the passage that should be found.
        negative: id of another passage.
        score: span F1 of the positive with the answer, 0 to 1; None where the positive is a gold passage.
    """

    example: str
    positive: str
    negative: str
    score: float | None = None
