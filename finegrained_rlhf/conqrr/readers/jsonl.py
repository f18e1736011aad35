"""The project's own files of questions in dialogues: JSON lines, one `RewriteExample` a line with its field names.

`docs/data_formats.md` describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from finegrained_rlhf.conqrr.readers.base import as_turn, optional_text
from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.core.sources import require_unique
from finegrained_rlhf.feedback.outputs import require_records

KEYS = tuple(entry.name for entry in fields(RewriteExample))


def read_rewrite_jsonl(path: str | Path) -> list[RewriteExample]:
    """Read a file of questions in dialogues.

    `rewrite`, `answer`, `gold`, `source`, `topic_shift`, `grades` and `published` may be absent; null is the same as
    absent.

    Raises:
        DataError: naming file, record (its id, or its number from 0) and field.
    """
    examples = []
    for i, row in enumerate(read_jsonl(path)):
        try:
            examples.append(parse_rewrite(row))
        except DataError as error:
            raise error.at(file=path, record=row["id"] if isinstance(row.get("id"), str) else i) from None
    require_records(examples, path)
    require_unique(examples, path)
    return examples


def parse_rewrite(row: Mapping[str, Any]) -> RewriteExample:
    """The example of one line.

    Raises:
        DataError: naming the field.
    """
    unknown = [key for key in row if key not in KEYS]
    require(not unknown, f"unknown field, expected {', '.join(KEYS)}", unknown[0] if unknown else "")
    shift = row.get("topic_shift")
    require(shift is None or isinstance(shift, bool), f"expected true, false or null, got {shift!r}", "topic_shift")
    gold = text_list(row.get("gold") or [], "gold")
    for i, passage in enumerate(gold):
        require_text(passage, f"gold[{i}]")
    history = text_list(get_field(row, "history"), "history")
    require(len(history) % 2 == 0, f"expected question, answer, question, answer, …, got {len(history)}", "history")
    return RewriteExample(
        id=require_text(get_field(row, "id"), "id"),
        dialogue=require_text(get_field(row, "dialogue"), "dialogue"),
        turn=as_turn(get_field(row, "turn"), "turn"),
        history=tuple(history),
        question=require_text(get_field(row, "question"), "question"),
        rewrite=optional_text(row.get("rewrite"), "rewrite"),
        answer=optional_text(row.get("answer"), "answer"),
        gold=tuple(gold),
        source=optional_text(row.get("source"), "source") or "",
        topic_shift=shift,
        grades=_grades(row.get("grades")),
        published=tuple(text_list(row.get("published") or [], "published")),
    )


def _grades(value: Any) -> dict[str, int]:
    """Grades by passage; null is none."""
    grades = as_object({} if value is None else value, "grades")
    for passage, grade in grades.items():
        valid = isinstance(grade, int) and not isinstance(grade, bool) and grade >= 1
        require(valid, f"expected a whole number from 1, got {grade!r}", f"grades.{passage}")
    return dict(grades)


def write_rewrite_jsonl(path: str | Path, examples: Iterable[RewriteExample]) -> None:
    """Write one example a line, atomically; fields that say nothing (null, empty) are left out."""
    write_jsonl(path, (rewrite_row(example) for example in examples))


def rewrite_row(example: RewriteExample) -> dict[str, Any]:
    """The JSON object of one example."""
    needed = {"id", "dialogue", "turn", "history", "question"}
    return {key: value for key, value in asdict(example).items() if key in needed or value not in (None, (), "", {})}
