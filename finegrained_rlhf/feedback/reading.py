"""Reading and writing the two published kinds of QA-FEEDBACK file.

Prompt files (`dev.json`) and feedback files (`dev_feedback.json`) are JSON arrays. Feedback files of other tasks have
the same form: what is marked then follows their taxonomy, and there may be any number of answers. The field-by-field
description is in `docs/data_formats.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from finegrained_rlhf.core.checks import get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import require_records
from finegrained_rlhf.feedback.records import FeedbackRecord, QAExample, check_types, derived_id
from finegrained_rlhf.feedback.rows import dataset_features, feedback_row, parse_feedback, record_id
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy

if TYPE_CHECKING:
    import datasets

Record = TypeVar("Record", QAExample, FeedbackRecord)


def read_examples(path: str | Path) -> list[QAExample]:
    """Read a prompt file (`text`, `answer`, `passages`, `question`, perhaps `id`).

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    return _read(path, _parse_example)


def read_feedback(path: str | Path, taxonomy: Taxonomy = QA_FEEDBACK) -> list[FeedbackRecord]:
    """Read a feedback file: `question`, `passages`, `prediction 1` … `N`, `feedback`, `preference` and more.

    Args:
        path: the file.
        taxonomy: what may be marked; QA-FEEDBACK's by default.

    Raises:
        DataError: naming file, record (from 0) and field.
    """

    def parse(row: Mapping[str, Any]) -> FeedbackRecord:
        record = parse_feedback(row)
        check_types(record, taxonomy)
        return record

    return _read(path, parse)


def load_examples(path: str | Path) -> datasets.Dataset:
    """A prompt file as a validated `datasets.Dataset` with the published columns and `id`."""
    return to_dataset(read_examples(path))


def load_feedback(path: str | Path, taxonomy: Taxonomy = QA_FEEDBACK) -> datasets.Dataset:
    """A feedback file as a validated `datasets.Dataset` with the published columns and `id`."""
    return to_dataset(read_feedback(path, taxonomy))


def write_examples(path: str | Path, records: Iterable[QAExample]) -> None:
    """Write a prompt file atomically, key for key as published.

    `id` is written only where it is not the one that `derived_id` gives back on reading. A passage's sentences are
    joined to one content text, as in the published file.
    """
    write_json(path, [_without_derived_id(example_row(record), record) for record in records])


def write_feedback(path: str | Path, records: Iterable[FeedbackRecord]) -> None:
    """Write a feedback file atomically, key for key as published (`id` as in `write_examples`)."""
    write_json(path, [_without_derived_id(feedback_row(record), record) for record in records])


def to_dataset(records: Sequence[QAExample] | Sequence[FeedbackRecord]) -> datasets.Dataset:
    """Records of one kind as a `datasets.Dataset` in memory.

    Raises:
        DataError: there are no records.
    """
    import datasets

    if not records:
        raise DataError("a data set needs at least one record")
    rows = [example_row(r) if isinstance(r, QAExample) else feedback_row(r) for r in records]
    features = dataset_features(rows)
    return datasets.Dataset.from_list([{name: row.get(name) for name in features} for row in rows], features=features)


def example_row(record: QAExample) -> dict[str, Any]:
    """The JSON object of one prompt record, `id` first."""
    return {
        "id": record.id,
        "text": record.text,
        "answer": list(record.references),
        "passages": [{"content": passage.text, "wikipage": passage.title} for passage in record.passages],
        "question": record.question,
    }


def _without_derived_id(row: dict[str, Any], record: QAExample | FeedbackRecord) -> dict[str, Any]:
    if record.id == derived_id(record.question, record.passages):
        row.pop("id")
    return row


def _read(path: str | Path, parse: Callable[[Mapping[str, Any]], Record]) -> list[Record]:
    """Validated records of a JSON array; derived ids that collide get `-2`, `-3`, … in file order."""
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"expected a JSON array of records, got {type(rows).__name__}", file=path)
    records: list[Record] = []
    counts: dict[str, int] = {}
    for i, row in enumerate(rows):
        try:
            require(isinstance(row, dict), f"expected a JSON object, got {type(row).__name__}", "(record)")
            record = parse(row)
            count = counts[record.id] = counts.get(record.id, 0) + 1
            if count > 1:
                require(row.get("id") is None, f"id {record.id!r} occurs twice", "id")
                record = replace(record, id=f"{record.id}-{count}")
        except DataError as error:
            raise error.at(file=path, record=i) from None
        records.append(record)
    require_records(records, path)
    return records


def _parse_example(row: Mapping[str, Any]) -> QAExample:
    text = require_text(get_field(row, "text"), "text")
    question = require_text(get_field(row, "question"), "question")
    references = tuple(text_list(get_field(row, "answer"), "answer"))
    items = get_field(row, "passages")
    require(isinstance(items, list), f"expected a list of passages, got {type(items).__name__}", "passages")
    passages = []
    for i, item in enumerate(items):
        field = f"passages[{i}]"
        require(isinstance(item, Mapping), f"expected an object, got {type(item).__name__}", field)
        content = require_text(get_field(item, "content", f"{field}."), f"{field}.content", empty=True)
        title = require_text(get_field(item, "wikipage", f"{field}."), f"{field}.wikipage", empty=True)
        passages.append(Passage("", title, (content,)))
    return QAExample(record_id(row, question, passages), question, text, references, tuple(passages))
