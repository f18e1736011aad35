"""Files of sampled or generated answers: JSONL, one question with its N outputs a line.

`finegrained sample-outputs` writes the format; `finegrained annotate-factworld` and `finegrained evaluate` read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import get_field, records_by_id, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import QAExample, derived_id


@dataclass(frozen=True)
class OutputRecord:
    """N answers to one question.

    Attributes:
        id: the question's id, unique within a file.
        question: the question.
        passages: the passages with their sentences; may be empty.
        references: human answers; empty where there are none.
        text: the task text that the policy read.
        outputs: N >= 1 answers. An answer may be empty: a policy can stop at once.
    """

    id: str
    question: str
    passages: tuple[Passage, ...]
    references: tuple[str, ...]
    text: str
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        require_text(self.id, "id")
        require_text(self.question, "question")
        require_text(self.text, "text", empty=True)
        for i, reference in enumerate(self.references):
            require_text(reference, f"answer[{i}]")
        require(len(self.outputs) > 0, "expected at least one output, got none", "outputs")
        for i, output in enumerate(self.outputs):
            require_text(output, f"outputs[{i}]", empty=True)

    @classmethod
    def of(cls, example: QAExample, outputs: Iterable[str]) -> OutputRecord:
        """The record of `outputs` sampled for `example`."""
        return cls(example.id, example.question, example.passages, example.references, example.text, tuple(outputs))


def read_texts(path: str | Path, key: str) -> dict[str, str]:
    """One text by id, from JSON lines with `id` and a key such as `response`; other fields are ignored.

    A text may be blank: a policy can stop at once.

    Raises:
        DataError: naming file, record (from 0) and field; an id that occurs twice, no line at all.
    """
    texts: dict[str, str] = {}
    rows = read_jsonl(path)
    for number, row in enumerate(rows):
        try:
            name = require_text(get_field(row, "id"), "id")
            require(name not in texts, f"{name} has a {key} already", "id")
            texts[name] = require_text(get_field(row, key), key, empty=True)
        except DataError as error:
            raise error.at(file=path, record=number) from None
    require_records(rows, path)
    return texts


def passages_of_lists(value: Any, field: str = "passages") -> tuple[Passage, ...]:
    """Passages from `[[title, sentence 1, …], …]`."""
    require(isinstance(value, list), f"expected a list of passages, got {type(value).__name__}", field)
    passages = []
    for i, item in enumerate(value):
        parts = text_list(item, f"{field}[{i}]")
        require(len(parts) > 0, "expected [title, sentence 1, …], got an empty list", f"{field}[{i}]")
        passages.append(Passage("", parts[0], tuple(parts[1:])))
    return tuple(passages)


def passages_to_lists(passages: Iterable[Passage]) -> list[list[str]]:
    """The inverse of `passages_of_lists`."""
    return [[passage.title, *passage.sentences] for passage in passages]


def _parse(row: Mapping[str, Any], need_passages: bool) -> OutputRecord:
    question = require_text(get_field(row, "question"), "question")
    passages = passages_of_lists(get_field(row, "passages") if need_passages else row.get("passages", []))
    return OutputRecord(
        id=row["id"] if row.get("id") is not None else derived_id(question, passages),
        question=question,
        passages=passages,
        references=tuple(text_list(row.get("answer", []), "answer")),
        text=row.get("text", ""),
        outputs=tuple(text_list(get_field(row, "outputs"), "outputs")),
    )


def read_outputs(path: str | Path, need_passages: bool = True) -> list[OutputRecord]:
    """Read a file of outputs.

    `id`, `answer` and `text` may be absent (a stranger's file): the id is then derived from question and passages.

    Args:
        path: of the file.
        need_passages: refuse a record without the field `passages`; else one without it has none.

    Raises:
        DataError: the file is missing or damaged, a record breaks the format, or an id occurs twice.
    """
    records = list(records_by_id(read_jsonl(path), lambda row, _: _parse(row, need_passages), path).values())
    require_records(records, path)
    return records


def require_records(records: list[Any], path: str | Path) -> None:
    """Raise DataError when a file holds no record at all."""
    if not records:
        raise DataError("holds no records, expected at least one", file=path)


def output_row(record: OutputRecord) -> dict[str, Any]:
    """The JSON object of one record."""
    return {
        "id": record.id,
        "question": record.question,
        "text": record.text,
        "passages": passages_to_lists(record.passages),
        "answer": list(record.references),
        "outputs": list(record.outputs),
    }


def write_outputs(path: str | Path, records: Iterable[OutputRecord]) -> None:
    """Write a file of outputs atomically, one JSON object a line."""
    write_jsonl(path, (output_row(record) for record in records))
