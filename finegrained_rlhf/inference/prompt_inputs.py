"""What `generate.py` can read: prompt files, JSON lines, and raw text from standard input.

Knows file formats. Knows no tokenizer, no model and no policy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import get_field, passages_of_lists
from finegrained_rlhf.feedback.reading import read_examples
from finegrained_rlhf.feedback.records import derived_id, require, require_text
from finegrained_rlhf.inference.prompts import example_metadata
from finegrained_rlhf.text.templates import task_text

STANDARD_INPUT = "-"
"""The `input` that means standard input."""


@dataclass(frozen=True)
class PromptInput:
    """A prompt as it was given.

    Attributes:
        id: unique within the source.
        text: exactly as the policy shall read it.
        metadata: `question`, `passages` and `references`, as far as the source has them: what reward models read.
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_inputs(source: str | Path) -> list[PromptInput]:
    """Prompts, in order.

    Args:
        source: a QA-FEEDBACK prompt file (JSON array), JSON lines with `text` or with `question` and `passages` or all
            three (`id` may be absent), or `-` for standard input, where every line that is not blank is a prompt.

    Raises:
        DataError: the source is missing, damaged or empty, a record has no text, or an id occurs twice.
    """
    if str(source) == STANDARD_INPUT:
        return _from_lines(_standard_input())
    try:
        with open(source, encoding="utf-8", errors="replace") as stream:
            beginning = stream.read(4096).lstrip()
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("no such file", file=source) from None
    if beginning.startswith("["):
        return [PromptInput(example.id, example.text, example_metadata(example)) for example in read_examples(source)]
    if beginning and not beginning.startswith("{"):
        raise DataError(
            "expected a JSON array of prompt records or one JSON object a line; for raw text use input=- < FILE",
            file=source,
        )
    return _from_rows(read_jsonl(source), source)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file="standard input") from None


def _from_lines(text: str) -> list[PromptInput]:
    lines = [line.rstrip("\r") for line in text.split("\n")]
    items = [PromptInput(f"line-{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not items:
        raise DataError("holds no text, expected one prompt a line", file="standard input")
    return items


def _from_rows(rows: Sequence[Mapping[str, Any]], source: str | Path) -> list[PromptInput]:
    if not rows:
        raise DataError("holds no records, expected at least one", file=source)
    items: dict[str, PromptInput] = {}
    for number, row in enumerate(rows):
        try:
            item = _item(row, number)
            require(item.id not in items, f"id {item.id!r} occurs twice", "id")
        except DataError as error:
            raise error.at(file=source, record=number) from None
        items[item.id] = item
    return list(items.values())


def _item(row: Mapping[str, Any], number: int) -> PromptInput:
    known: dict[str, Any] = {}
    if "question" in row and ("passages" in row or not row.get("text")):
        known["question"] = require_text(row["question"], "question")
        known["passages"] = _passages(get_field(row, "passages"))
    if row.get("text"):
        text, default = require_text(row["text"], "text"), f"record-{number}"
    else:
        require(bool(known), "expected text, or question and passages", "text")
        text, default = task_text(**known), derived_id(**known)
    return PromptInput(default if row.get("id") is None else require_text(row["id"], "id"), text, known)


def _passages(value: Any) -> tuple[Passage, ...]:
    """Passages written as `[title, sentence 1, …]` or as `{"wikipage": title, "content": text}`."""
    if isinstance(value, list):
        value = [
            [get_field(item, key, f"passages[{i}].") for key in ("wikipage", "content")]
            if isinstance(item, Mapping)
            else item
            for i, item in enumerate(value)
        ]
    return passages_of_lists(value)
