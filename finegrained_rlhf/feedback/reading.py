"""Reading and writing the two published kinds of QA-FEEDBACK file.

Prompt files (`dev.json`) and feedback files (`dev_feedback.json`) are JSON arrays. Every record is validated before it
enters a `datasets.Dataset`, and records come out of that data set. Knows the published field names; does not know how
the records are used. The field-by-field description is in `docs/data_formats.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import (
    get_field,
    passages_of_lists,
    passages_to_lists,
    require_records,
    text_list,
)
from finegrained_rlhf.feedback.records import (
    PREDICTIONS,
    Feedback,
    FeedbackRecord,
    MissingInfo,
    QAExample,
    SpanError,
    derived_id,
    require,
    require_text,
)

if TYPE_CHECKING:
    import datasets

Record = TypeVar("Record", QAExample, FeedbackRecord)


def read_examples(path: str | Path) -> list[QAExample]:
    """Read a prompt file (`text`, `answer`, `passages`, `question`, perhaps `id`).

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    return [_parse_example(row) for row in load_examples(path)]


def read_feedback(path: str | Path) -> list[FeedbackRecord]:
    """Read a feedback file (`question`, `passages`, `gold`, `prediction 1` … `4`, `feedback`, `preference`).

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    return [_parse_feedback(row) for row in load_feedback(path)]


def load_examples(path: str | Path) -> datasets.Dataset:
    """A prompt file as a validated `datasets.Dataset` with the published columns and `id`."""
    return to_dataset(_read(path, _parse_example))


def load_feedback(path: str | Path) -> datasets.Dataset:
    """A feedback file as a validated `datasets.Dataset` with the published columns and `id`."""
    return to_dataset(_read(path, _parse_feedback))


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
    text, number = datasets.Value("string"), datasets.Value("int64")
    if isinstance(records[0], QAExample):
        rows = [example_row(record) for record in records if isinstance(record, QAExample)]
        columns: dict[str, Any] = {
            "id": text,
            "text": text,
            "answer": [text],
            "passages": [{"content": text, "wikipage": text}],
            "question": text,
        }
    else:
        rows = [feedback_row(record) for record in records if isinstance(record, FeedbackRecord)]
        error = {"error type": text, "explanation": text, "start": number, "end": number}
        missing = {"error type": text, "passage_id": number, "sentence_id": [number]}
        columns = {
            "id": text,
            "question": text,
            "passages": [[text]],
            "gold": text,
            **{f"prediction {i}": text for i in range(1, PREDICTIONS + 1)},
            "feedback": {"errors": [error], "missing-info": [missing], "corrected-prediction": text},
            "preference": [number],
        }
    return datasets.Dataset.from_list(rows, features=datasets.Features(columns))


def example_row(record: QAExample) -> dict[str, Any]:
    """The JSON object of one prompt record, `id` first."""
    return {
        "id": record.id,
        "text": record.text,
        "answer": list(record.references),
        "passages": [{"content": passage.text, "wikipage": passage.title} for passage in record.passages],
        "question": record.question,
    }


def feedback_row(record: FeedbackRecord) -> dict[str, Any]:
    """The JSON object of one feedback record, `id` first."""
    return {
        "id": record.id,
        "question": record.question,
        "passages": passages_to_lists(record.passages),
        "gold": record.gold,
        **{f"prediction {i}": text for i, text in enumerate(record.predictions, start=1)},
        "feedback": {
            "errors": [_error_row(error) for error in record.feedback.errors],
            "missing-info": [
                {"error type": m.error_type, "passage_id": m.passage_id, "sentence_id": list(m.sentence_ids)}
                for m in record.feedback.missing_info
            ],
            "corrected-prediction": record.feedback.corrected_prediction,
        },
        "preference": list(record.preferences),
    }


def _error_row(error: SpanError) -> dict[str, Any]:
    explanation = {} if error.explanation is None else {"explanation": error.explanation}
    return {"error type": error.error_type, **explanation, "start": error.start, "end": error.end}


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
    seen: dict[str, int] = {}
    for i, row in enumerate(rows):
        try:
            require(isinstance(row, dict), f"expected a JSON object, got {type(row).__name__}", "(record)")
            record = parse(row)
            count = seen[record.id] = seen.get(record.id, 0) + 1
            if count > 1:
                require(row.get("id") is None, f"id {record.id!r} occurs twice", "id")
                record = replace(record, id=f"{record.id}-{count}")
        except DataError as error:
            raise error.at(file=path, record=i) from None
        records.append(record)
    require_records(records, path)
    return records


def _id(row: Mapping[str, Any], question: str, passages: Sequence[Passage]) -> str:
    return require_text(row["id"], "id") if row.get("id") is not None else derived_id(question, passages)


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
    return QAExample(_id(row, question, passages), question, text, references, tuple(passages))


def _parse_feedback(row: Mapping[str, Any]) -> FeedbackRecord:
    question = require_text(get_field(row, "question"), "question")
    passages = passages_of_lists(get_field(row, "passages"))
    return FeedbackRecord(
        id=_id(row, question, passages),
        question=question,
        passages=passages,
        gold=get_field(row, "gold"),
        predictions=tuple(get_field(row, f"prediction {i}") for i in range(1, PREDICTIONS + 1)),
        feedback=_parse_judgement(get_field(row, "feedback")),
        preferences=_whole_numbers(get_field(row, "preference"), "preference"),
    )


def _parse_judgement(value: Any) -> Feedback:
    require(isinstance(value, Mapping), f"expected an object, got {type(value).__name__}", "feedback")
    errors = []
    for field, item in _objects(value, "errors"):
        explanation = item.get("explanation")
        errors.append(
            SpanError(
                start=_whole_number(get_field(item, "start", f"{field}."), f"{field}.start"),
                end=_whole_number(get_field(item, "end", f"{field}."), f"{field}.end"),
                error_type=require_text(get_field(item, "error type", f"{field}."), f"{field}.error type"),
                explanation=explanation,
            )
        )
    missing = []
    for field, item in _objects(value, "missing-info"):
        missing.append(
            MissingInfo(
                error_type=require_text(get_field(item, "error type", f"{field}."), f"{field}.error type"),
                passage_id=_whole_number(get_field(item, "passage_id", f"{field}."), f"{field}.passage_id"),
                sentence_ids=_whole_numbers(get_field(item, "sentence_id", f"{field}."), f"{field}.sentence_id"),
            )
        )
    corrected = get_field(value, "corrected-prediction", "feedback.")
    return Feedback(tuple(errors), tuple(missing), corrected)


def _objects(value: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    items = get_field(value, key, "feedback.")
    require(isinstance(items, list), f"expected a list, got {type(items).__name__}", f"feedback.{key}")
    named = [(f"feedback.{key}[{i}]", item) for i, item in enumerate(items)]
    for field, item in named:
        require(isinstance(item, Mapping), f"expected an object, got {type(item).__name__}", field)
    return named


def _whole_number(value: Any, field: str) -> int:
    require(
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63,
        f"expected a whole number, got {value!r}",
        field,
    )
    return int(value)


def _whole_numbers(value: Any, field: str) -> tuple[int, ...]:
    require(isinstance(value, list), f"expected a list of whole numbers, got {type(value).__name__}", field)
    return tuple(_whole_number(item, f"{field}[{i}]") for i, item in enumerate(value))
