"""Turns of published files of questions in dialogues, and the examples that they become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finegrained_rlhf.conqrr.data import RewriteExample
from finegrained_rlhf.core.checks import get_field, require_text


def conversation_number(row: Mapping[str, Any]) -> str:
    """`Conversation_no` of a record of QReCC or TopiOCQA: a whole number, or some text.

    Raises:
        DataError: naming the field.
    """
    number = get_field(row, "Conversation_no")
    if isinstance(number, int) and not isinstance(number, bool):
        return str(number)
    return require_text(number, "Conversation_no")


@dataclass(frozen=True)
class PublishedTurn:
    """One turn of a published file, before first questions are replaced.

    Attributes:
        turn: its number in the dialogue, from 1.
        history: what was said before, as in `RewriteExample`.
        question: as it was asked.
        rewrite: the human's rewrite, None where there is none.
        answer: None where there is none.
        gold: ids of the passages that answer it.
        documents: documents of those passages, or what the dialogue is known to be about at this turn.
        source: where the dialogue comes from.
        grades: of judged passages, as in `RewriteExample`.
        about: what the record says the dialogue is about, beside its turns.
        name: in the dialogue, where that is another than its number.
    """

    turn: int
    history: tuple[str, ...]
    question: str
    rewrite: str | None = None
    answer: str | None = None
    gold: tuple[str, ...] = ()
    documents: frozenset[str] = frozenset()
    source: str = ""
    grades: Mapping[str, int] = field(default_factory=dict)
    about: tuple[str, ...] = ()
    name: str = ""


def examples_of(name: str, turns: Sequence[PublishedTurn], notes: Counter[str]) -> list[RewriteExample]:
    """The examples of one dialogue: its first question is replaced by its rewrite, here and in later histories.

    A later turn shifts the topic when none of its gold passages comes from a document that held a gold passage of an
    earlier turn (thesis, section 4.3.3), also where no earlier turn has one; it is not known where the turn has no gold
    passage, or is the first.

    Args:
        name: of the dialogue.
        turns: in the order of their numbers.
        notes: counts histories that do not begin with the dialogue's first question; they stay as they are.
    """
    first = turns[0] if turns and not turns[0].history else None
    examples: list[RewriteExample] = []
    used: set[str] = set()
    for turn in turns:
        question, history = turn.question, turn.history
        if first is not None and first.rewrite is not None:
            if turn is first:
                question = first.rewrite
            elif history and history[0].strip() == first.question.strip():
                history = (first.rewrite, *history[1:])
            else:
                notes["history begins with another question than the first"] += 1
        shift = used.isdisjoint(turn.documents) if turn.documents and turn.history else None
        used |= turn.documents
        replaced = question != turn.question or history != turn.history
        published = (*turn.about, *turn.history, turn.question) if replaced or turn.about else ()
        examples.append(
            RewriteExample(
                id=f"{name}_{turn.name or turn.turn}",
                dialogue=name,
                turn=turn.turn,
                history=history,
                question=question,
                rewrite=turn.rewrite,
                answer=turn.answer,
                gold=turn.gold,
                source=turn.source,
                topic_shift=shift,
                grades=turn.grades,
                published=published,
            )
        )
    return examples
