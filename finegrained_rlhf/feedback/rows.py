"""A feedback record as the JSON object of its file, and back; and as columns of a `datasets.Dataset`.

A broken object raises `DataError` with the field. Columns hold only what the rows hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.checks import as_list, get_field, require, require_text, text_list
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import passages_of_lists, passages_to_lists
from finegrained_rlhf.feedback.records import (
    Feedback,
    FeedbackRecord,
    MissingInfo,
    SpanError,
    derived_id,
    feedback_key,
    ranking_preferences,
)

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
