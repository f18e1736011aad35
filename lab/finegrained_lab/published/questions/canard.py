"""CANARD: rewrites of QuAC's questions; each dialogue is about one section of one article.

Reads the published files (`train.json`, `dev.json`, `test.json`). The corpus that can be made of them holds the
answers, each with its article and section as title. A turn's answer stands in the history of the next turn, so a
dialogue's last turn has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from finegrained_lab.published.questions.turns import PublishedTurn, examples_of
from finegrained_rlhf.conqrr.data import RewriteReading, as_turn, optional_text
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialogue.records import Passage

NO_ANSWER = "I don't know."
"""How CANARD writes that QuAC's teacher found no answer in the section."""
UnknownAnswers = Literal["keep", "drop"]
ELSEWHERE = "turn of another part"


@dataclass(frozen=True)
class _Row:
    """One record of the file."""

    turn: PublishedTurn
    title: str


def read_canard(path: str | Path, unknown: UnknownAnswers = "keep", part: Part = "all") -> RewriteReading:
    """Read a file of CANARD; one example a record, whose gold passage is its own answer (`canard_passages`).

    Args:
        path: the file.
        unknown: `drop` takes "I don't know." for no answer; `keep` for an answer like any other.
        part: holds out dialogues of one published file by a hash of their ids: a tenth is `dev`, two tenths `test`.

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    reading, _ = read_canard_corpus(path, unknown, part)
    return reading


def canard_passages(path: str | Path, unknown: UnknownAnswers = "keep") -> list[Passage]:
    """The corpus of a file: its answers with article and section; equal answers about one section are one passage.

    Raises:
        DataError: as `read_canard`.
    """
    _, passages = read_canard_corpus(path, unknown)
    return passages


def read_canard_corpus(
    path: str | Path, unknown: UnknownAnswers = "keep", part: Part = "all"
) -> tuple[RewriteReading, list[Passage]]:
    """Examples and corpus in one go; arguments and errors are those of `read_canard`. The corpus is of all parts."""
    dialogues = _dialogues(path)
    notes: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    passages: dict[tuple[str, str], Passage] = {}
    examples = []
    for name, rows in dialogues.items():
        of_part = part in ("all", canard_part(name))
        turns = []
        for row, answer in zip(rows, _answers(rows), strict=True):
            if answer == NO_ANSWER:
                notes[f"answered {NO_ANSWER!r}"] += of_part
                answer = answer if unknown == "keep" else None
            if answer is None:
                turns.append(row.turn)
                continue
            passage = passages.setdefault(
                (row.title, answer), Passage.uncut(f"{name}_{row.turn.turn}", answer, row.title)
            )
            turns.append(replace(row.turn, answer=answer, gold=(passage.id,)))
        if of_part:
            examples += examples_of(name, turns, notes)
        else:
            skipped[ELSEWHERE] += len(turns)
    return RewriteReading.of(examples, len(dialogues), skipped, notes, path), list(passages.values())


def canard_part(dialogue: str) -> Part:
    """Which part a dialogue is held out for."""
    tenth = stable_hash("CANARD", dialogue) % 10
    return "dev" if tenth == 0 else "test" if tenth <= 2 else "train"


def _dialogues(path: str | Path) -> dict[str, list[_Row]]:
    """The records of each dialogue, in the order of their numbers, checked against each other."""
    records = read_json(path)
    if not isinstance(records, list):
        raise DataError(f"expected a JSON array of records, got {type(records).__name__}", file=path)
    dialogues: dict[str, dict[int, tuple[int, _Row]]] = {}
    for i, record in enumerate(records):
        try:
            record = as_object(record, "(record)")
            row = _row(record)
            name = require_text(get_field(record, "QuAC_dialog_id"), "QuAC_dialog_id")
            turns = dialogues.setdefault(name, {})
            require(row.turn.turn not in turns, f"question {row.turn.turn} of {name} occurs twice", "Question_no")
        except DataError as error:
            raise error.at(file=path, record=i) from None
        turns[row.turn.turn] = (i, row)
    ordered = {}
    for name, turns in dialogues.items():
        rows = [turns[number] for number in sorted(turns)]
        for i, row in rows[1:]:
            if row.title != rows[0][1].title:
                problem = f"another article or section than before in the dialogue: {row.title!r}"
                raise DataError(problem, file=path, record=i, field="History")
        ordered[name] = [row for _, row in rows]
    return ordered


def _row(record: Mapping[str, Any]) -> _Row:
    history = text_list(get_field(record, "History"), "History")
    number = as_turn(get_field(record, "Question_no"), "Question_no")
    expected = 2 * number
    require(
        len(history) == expected,
        f"expected article, section and {number - 1} questions with answers ({expected} texts), got {len(history)}",
        "History",
    )
    title = ", ".join(text.strip() for text in history[:2] if text.strip())
    turn = PublishedTurn(
        turn=number,
        history=tuple(history[2:]),
        question=require_text(get_field(record, "Question"), "Question"),
        rewrite=optional_text(get_field(record, "Rewrite"), "Rewrite"),
        documents=frozenset((title,)),
        source="quac",
        about=tuple(text for text in history[:2] if text.strip()),
    )
    return _Row(turn, title)


def _answers(rows: Sequence[_Row]) -> list[str | None]:
    """The answer of each turn, from the history of the next one; None where the next question is not in the file."""
    answers: list[str | None] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        follows = following is not None and following.turn.turn == row.turn.turn + 1
        text = following.turn.history[-1].strip() if following is not None and follows else ""
        answers.append(text or None)
    return answers
