"""The columns of a `datasets.Dataset` of prompt or feedback records: only what the rows hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets


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
