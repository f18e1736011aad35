"""Reading and writing the two published kinds of QA-FEEDBACK file, and records as rows of columns.

Prompt files (`dev.json`) and feedback files (`dev_feedback.json`) are JSON arrays. Feedback files of other tasks have
the same form: what is marked then follows their taxonomy, and there may be any number of answers. The field-by-field
description is in `docs/data_formats.md`. A broken object raises `DataError` with the field. Columns of a
`datasets.Dataset` hold only what the rows hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from finegrained_rlhf.core.checks import as_list, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import passages_of_lists, passages_to_lists, require_records
from finegrained_rlhf.feedback.records import (
    Feedback,
    FeedbackRecord,
    MissingInfo,
    QAExample,
    SpanError,
    check_types,
    derived_id,
    feedback_key,
    ranking_preferences,
)
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy

if TYPE_CHECKING:
    import datasets

_PREDICTION, _NUMBERED = re.compile(r"prediction [0-9]+"), re.compile(r"feedback [0-9]+")


def feedback_row(record: FeedbackRecord) -> dict[str, Any]:
    """The JSON object of one feedback record, `id` first; what is not there has no key."""
    return {
        "id": record.id,
        "question": record.question,
        "passages": passages_to_lists(record.passages),
        **({} if record.gold is None else {"gold": record.gold}),
        **{f"prediction {i}": text for i, text in enumerate(record.predictions, start=1)},
        **{feedback_key(i): _judgement_row(feedback) for i, feedback in record.marked.items()},
        **({"preference": list(record.preferences)} if record.preferences else {}),
    }


def _judgement_row(feedback: Feedback) -> dict[str, Any]:
    corrected = feedback.corrected_prediction
    return {
        "errors": [_error_row(error) for error in feedback.errors],
        "missing-info": [
            {
                "error type": m.error_type,
                "passage_id": m.passage_id,
                "sentence_id": list(m.sentence_ids),
                **_names(m.annotators),
            }
            for m in feedback.missing_info
        ],
        **({} if corrected is None else {"corrected-prediction": corrected}),
        **_names(feedback.annotators),
        **({"dropped": [_error_row(error) for error in feedback.dropped]} if feedback.dropped else {}),
    }


def _error_row(error: SpanError) -> dict[str, Any]:
    explanation = {} if error.explanation is None else {"explanation": error.explanation}
    evidence = [{"passage_id": passage, "sentence_id": [sentence]} for passage, sentence in error.evidence]
    return {
        "error type": error.error_type,
        **explanation,
        "start": error.start,
        "end": error.end,
        **({"evidence": evidence} if evidence else {}),
        **_names(error.annotators),
    }


def _names(annotators: Sequence[str]) -> dict[str, Any]:
    return {"annotators": list(annotators)} if annotators else {}


def parse_feedback(row: Mapping[str, Any]) -> FeedbackRecord:
    """The record of a JSON object. Raises DataError with the field."""
    question = require_text(get_field(row, "question"), "question")
    passages = passages_of_lists(get_field(row, "passages"))
    predictions = tuple(_predictions(row))
    marked = {i: row[feedback_key(i)] for i in range(len(predictions)) if row.get(feedback_key(i)) is not None}
    beyond = [key for key in row if _NUMBERED.fullmatch(key) and int(key.split()[1]) > len(predictions)]
    require(not beyond, "expected feedback on one of the predictions", beyond[0] if beyond else "")
    feedback = {i: _parse_judgement(value, feedback_key(i)) for i, value in marked.items()}
    return FeedbackRecord(
        id=record_id(row, question, passages),
        question=question,
        passages=passages,
        predictions=predictions,
        feedback=feedback.pop(0, None),
        preferences=_preferences(row, len(predictions)),
        gold=row.get("gold"),
        more_feedback=feedback,
    )


def record_id(row: Mapping[str, Any], question: str, passages: Sequence[Passage]) -> str:
    """The id that a row has, or that its question and passages give it."""
    return require_text(row["id"], "id") if row.get("id") is not None else derived_id(question, passages)


def _predictions(row: Mapping[str, Any]) -> Iterator[Any]:
    """`prediction 1`, `prediction 2`, … as far as they go, at least one."""
    yield get_field(row, "prediction 1")
    count = 1
    while row.get(f"prediction {count + 1}") is not None:
        count += 1
        yield row[f"prediction {count}"]
    gap = [key for key in row if _PREDICTION.fullmatch(key) and int(key.split()[1]) > count and row[key] is not None]
    if gap:
        get_field(row, f"prediction {count + 1}")
        require(False, f"expected a text before {gap[0]}", f"prediction {count + 1}")


def _preferences(row: Mapping[str, Any], answers: int) -> tuple[int | None, ...]:
    """Of `preference`, a judgement a pair (null where nobody said), or of `ranking`, groups from the best on."""
    preference, ranking = row.get("preference"), row.get("ranking")
    require(preference is None or ranking is None, "expected preference or ranking, got both", "ranking")
    if ranking is not None:
        require(isinstance(ranking, list), f"expected a list of groups, got {type(ranking).__name__}", "ranking")
        groups = [_whole_numbers(group, f"ranking[{i}]") for i, group in enumerate(ranking)]
        return ranking_preferences([[number - 1 for number in group] for group in groups], answers)
    if preference is None:
        return ()
    require(
        isinstance(preference, list), f"expected a list of whole numbers, got {type(preference).__name__}", "preference"
    )
    return tuple(
        None if value is None else _whole_number(value, f"preference[{i}]") for i, value in enumerate(preference)
    )


def _parse_judgement(value: Any, key: str) -> Feedback:
    require(isinstance(value, Mapping), f"expected an object, got {type(value).__name__}", key)
    missing = []
    for at, item in _objects(value, "missing-info", key):
        missing.append(
            MissingInfo(
                error_type=require_text(get_field(item, "error type", f"{at}."), f"{at}.error type"),
                passage_id=_whole_number(get_field(item, "passage_id", f"{at}."), f"{at}.passage_id"),
                sentence_ids=_whole_numbers(get_field(item, "sentence_id", f"{at}."), f"{at}.sentence_id"),
                annotators=_annotators(item, at),
            )
        )
    errors = tuple(_parse_error(item, at) for at, item in _objects(value, "errors", key))
    dropped = tuple(_parse_error(i, at) for at, i in _objects(value, "dropped", key)) if value.get("dropped") else ()
    return Feedback(errors, tuple(missing), value.get("corrected-prediction"), _annotators(value, key), dropped)


def _parse_error(item: Mapping[str, Any], at: str) -> SpanError:
    evidence = [] if item.get("evidence") is None else as_list(item["evidence"], f"{at}.evidence")
    shown = []
    for i, place in enumerate(evidence):
        field = f"{at}.evidence[{i}]"
        require(isinstance(place, Mapping), f"expected an object, got {type(place).__name__}", field)
        passage = _whole_number(get_field(place, "passage_id", f"{field}."), f"{field}.passage_id")
        sentences = _whole_numbers(get_field(place, "sentence_id", f"{field}."), f"{field}.sentence_id")
        shown += [(passage, sentence) for sentence in sentences]
    return SpanError(
        start=_whole_number(get_field(item, "start", f"{at}."), f"{at}.start"),
        end=_whole_number(get_field(item, "end", f"{at}."), f"{at}.end"),
        error_type=require_text(get_field(item, "error type", f"{at}."), f"{at}.error type"),
        explanation=item.get("explanation"),
        evidence=tuple(shown),
        annotators=_annotators(item, at),
    )


def _annotators(item: Mapping[str, Any], at: str) -> tuple[str, ...]:
    names = item.get("annotators")
    if names is None:
        return ()
    return tuple(
        require_text(name, f"{at}.annotators[{i}]") for i, name in enumerate(text_list(names, f"{at}.annotators"))
    )


def _objects(value: Mapping[str, Any], key: str, prefix: str) -> list[tuple[str, Mapping[str, Any]]]:
    items = as_list(get_field(value, key, f"{prefix}."), f"{prefix}.{key}")
    named = [(f"{prefix}.{key}[{i}]", item) for i, item in enumerate(items)]
    for at, item in named:
        require(isinstance(item, Mapping), f"expected an object, got {type(item).__name__}", at)
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


def dataset_features(rows: Sequence[Mapping[str, Any]]) -> datasets.Features:
    """The type of every column: of what the rows hold, with one type for what only some of them hold."""
    import datasets

    text, number = datasets.Value("string"), datasets.Value("int64")
    if "answer" in rows[0]:
        passage = {"content": text, "wikipage": text}
        return datasets.Features({"id": text, "text": text, "answer": [text], "passages": [passage], "question": text})
    missing = {"error type": text, "passage_id": number, "sentence_id": [number], "annotators": [text]}
    error = {"error type": text, "explanation": text, "start": number, "end": number}
    error |= {"evidence": [{"passage_id": number, "sentence_id": [number]}], "annotators": [text]}
    feedback = {"errors": [error], "missing-info": [missing], "corrected-prediction": text}
    feedback |= {"annotators": [text], "dropped": [error]}
    known = {"question": text, "passages": [[text]], "gold": text, "preference": [number], "id": text}
    features: dict[str, Any] = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        held = [row[name] for row in rows if name in row]
        if name.startswith("feedback"):
            features[name] = {key: _narrowed(kind, [h.get(key) for h in held]) for key, kind in feedback.items()}
            features[name] = {key: kind for key, kind in features[name].items() if kind is not None}
        else:
            features[name] = known.get(name, text)
    return datasets.Features(features)


def _narrowed(kind: Any, held: Sequence[Any]) -> Any:
    """A column's type without the keys that no row holds; None where no row holds the column."""
    if all(value is None for value in held):
        return None
    if not (isinstance(kind, list) and isinstance(kind[0], dict)):
        return kind
    items = [item for value in held for item in value or []]
    optional = ("evidence", "annotators")
    return [{k: v for k, v in kind[0].items() if k not in optional or any(k in item for item in items)}]


Record = TypeVar("Record", QAExample, FeedbackRecord)


def read_examples(path: str | Path) -> list[QAExample]:
    """Read a prompt file (`text`, `answer`, `passages`, `question`, perhaps `id`).

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    return _read(path, _parse_example)


def read_feedback(path: str | Path, taxonomy: Taxonomy | None = QA_FEEDBACK) -> list[FeedbackRecord]:
    """Read a feedback file: `question`, `passages`, `prediction 1` … `N`, `feedback`, `preference` and more.

    Args:
        path: the file.
        taxonomy: what may be marked; QA-FEEDBACK's by default, and None for whatever is.

    Raises:
        DataError: naming file, record (from 0) and field.
    """

    def parse(row: Mapping[str, Any]) -> FeedbackRecord:
        record = parse_feedback(row)
        if taxonomy is not None:
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
