"""Rows of a stranger's file, and what its columns are: prompts, passages, answers, and marks in one of four forms.

A column is known by its name first, and then by what it holds. What cannot be known is asked for in one line: which
column (`fields={answer: reply}`), or which values of a label mean that nothing is wrong (`good=[ok]`).
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import naming, read_json, read_jsonl
from finegrained_rlhf.feedback.prompt_files import parquet_rows

Form = Literal["pairs", "spans", "sentences", "thumbs", "prompts"]
"""Pairs of answers with a winner, spans or sentences with labels, a thumb an answer; prompts without marks."""
Row = Mapping[str, Any]

SPANS = ("spans", "marks", "annotations", "highlights", "errors", "entities", "issues", "labels", "label", "feedback")
LABEL = ("label", "labels", "type", "category", "error_type", "tag", "class", "error", "verdict", "judgement", "name")
QUOTE = ("text", "quote", "span", "sentence", "segment", "claim", "content")
NAMES: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "conversation", "conversations", "chat", "dialogue", "dialog", "prompt", "turns"),
    "prompt": (
        *("question", "prompt", "query", "instruction", "input", "request", "user_input", "user_query", "user_prompt"),
        *("user", "user_message", "ask", "problem", "task"),
    ),
    "passages": (
        *("passages", "passage", "context", "contexts", "documents", "document", "evidence", "sources", "source"),
        *("background", "knowledge", "article", "reference_text", "grounding"),
    ),
    "chosen": ("chosen", "preferred", "accepted", "winner_response", "better_answer"),
    "rejected": ("rejected", "dispreferred", "loser_response", "worse_answer"),
    "first": tuple(f"{name}_{end}" for name in ("response", "answer", "output", "completion") for end in "a01"),
    "second": tuple(f"{name}_{end}" for name in ("response", "answer", "output", "completion") for end in "b12"),
    "winner": ("preference", "winner", "preferred", "better", "choice", "chosen", "label", "vote"),
    "answer": (
        *("answer", "response", "output", "completion", "prediction", "reply", "generation", "assistant"),
        *("model_answer", "model_output", "generated_text", "summary", "translation", "text"),
    ),
    "spans": SPANS,
    "sentences": ("sentences", "segments", "claims", "sub_sentences"),
    "sentence": ("sentence", "segment", "claim", "sub_sentence"),
    "labels": ("labels", "sentence_labels", "tags", "verdicts"),
    "label": (*LABEL, "is_error", "has_error", "hallucinated", "hallucination", "correct", "supported", "ok"),
    "thumb": (
        *("thumb", "thumbs", "vote", "rating", "feedback", "liked", "like", "helpful", "upvoted", "reaction", "good"),
        *("acceptable", "accepted", "label", "score"),
    ),
    "reference": ("reference", "references", "gold", "target", "ideal", "ground_truth"),
}
"""Names that columns of each role have elsewhere, in lower case with `_` between words, the likeliest first."""

UP = "up|thumbs up|👍|good|like|liked|positive|yes|true|1|+1|helpful|upvote|y".split("|")
DOWN = "down|thumbs down|👎|bad|dislike|disliked|negative|no|false|0|-1|not helpful|unhelpful|downvote|n".split("|")
_FINE = "ok|okay|fine|correct|none|no error|supported|clean|faithful|entailed|entailment|right|o|good".split("|")
_OF_FAULTS = ("error", "is_error", "has_error", "hallucinated", "hallucination")
_OF_MERITS = ("correct", "supported", "ok")
_MOST_LABELS = 35


@dataclass(frozen=True)
class Layout:
    """What a file's columns are.

    Attributes:
        form: of its marks.
        columns: name of the column by role.
        good: values of a label, as `word` writes them, that mean that nothing is wrong.
        unread: columns of which nothing is taken.
    """

    form: Form
    columns: Mapping[str, str]
    good: frozenset[str] = frozenset()
    unread: Sequence[str] = field(default_factory=tuple)

    def value(self, row: Row, role: str) -> Any:
        """What a row holds in a role; None where it has no such column, or nothing there."""
        value = row.get(self.columns.get(role, ""))
        return None if isinstance(value, str) and not value.strip() else value


def read_rows(file: str | Path) -> list[Row]:
    """The records of a JSON, JSON lines, CSV, TSV or parquet file.

    Raises:
        DataError: it cannot be read, holds no records, or one is no object.
    """
    path = Path(file)
    if path.suffix == ".parquet":
        rows: Any = parquet_rows(path)
    elif path.suffix in (".csv", ".tsv"):
        rows = _table(path)
    elif path.suffix == ".jsonl":
        rows = read_jsonl(path)
    else:
        rows = read_json(path)
        if isinstance(rows, dict):  # {"data": [...]}, with whatever else is said of it
            lists = [value for value in rows.values() if isinstance(value, list)]
            rows = lists[0] if len(lists) == 1 else None
    if not isinstance(rows, list) or not rows:
        raise DataError("expected a list of records, got none", file=path)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"expected an object, got {type(row).__name__}", file=path, record=number)
    return [{str(key): _parsed(value) for key, value in row.items()} for row in rows]


def _table(path: Path) -> list[dict[str, Any]]:
    csv.field_size_limit(2**31 - 1)
    with naming(path), open(path, encoding="utf-8-sig", newline="") as stream:
        try:
            head = stream.readline()
            stream.seek(0)
            delimiter = max("\t;,", key=head.count)
            rows = list(csv.DictReader(stream, delimiter=delimiter, strict=True))
        except UnicodeDecodeError:
            raise DataError("not UTF-8 text", file=path) from None
        except csv.Error as error:
            raise DataError(f"not a readable table ({error})", file=path) from None
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise DataError("has another number of cells than the first line", file=path, record=number)
    return rows


def _parsed(value: Any) -> Any:
    """A list or an object that stands as text in a cell."""
    if isinstance(value, str) and value[:1] in ("[", "{") and value[-1:] in ("]", "}"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def word(value: Any) -> str:
    """A label as it is compared: lower case, one space between words, `1` for 1.0."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return re.sub(r"[\s_]+|(?<=\w)-", " ", str(value).strip().lower())


def key_of(name: str) -> str:
    """The name of a column in lower case with `_` between words."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")


def _is_talk(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and not _is_talk(value) and all(isinstance(i, Mapping | list) for i in value)


_HOLDS: Mapping[str, Callable[[Any], bool]] = {
    **{"messages": _is_talk, "prompt": _is_text, "spans": _is_list, "answer": _is_text, "sentence": _is_text},
    **{"label": _is_scalar, "thumb": _is_scalar, "winner": _is_scalar, "first": _is_text, "second": _is_text},
    **{role: lambda value: isinstance(value, str | list) for role in ("passages", "chosen", "rejected", "reference")},
    **{role: lambda value: isinstance(value, list) for role in ("sentences", "labels")},
}
"""What the values of a column of each role must be."""


def layout_of(
    rows: Sequence[Row], marked: bool, fields: Mapping[str, str], good: Collection[Any], file: str | Path
) -> Layout:
    """What the columns of a file are.

    Args:
        rows: its records.
        marked: whether marks are looked for, or prompts alone.
        fields: columns that the user names, by role.
        good: values of the label that mean that nothing is wrong; empty to know them by their words.
        file: for messages.

    Raises:
        ConfigError: a column or a value has to be named by the user.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    for role, name in fields.items():
        if role not in NAMES or name not in names:
            what = f"no column {name!r}; it has {', '.join(names)}" if role in NAMES else "expected a role of a column:"
            raise ConfigError(f"fields.{role}: {what}{'' if role in NAMES else ' ' + ', '.join(NAMES)}")
    columns = {role: one for role in NAMES if (one := fields.get(role) or _column(rows, names, role))}
    form, roles = _form(columns, rows) if marked else ("prompts", ("reference",))
    asks = "messages" in columns or "prompt" in columns or _is_talk(rows[0].get(columns.get("chosen", "")))
    if form is None or not asks:
        lacks = "prompts (fields={prompt: COLUMN})" if form else "marks: spans, labels of sentences, pairs or thumbs"
        raise ConfigError(f"data: {file}: no column is known to hold {lacks}; it has {', '.join(names)}")
    asked = "messages" if "messages" in columns else "prompt"
    used = {role: columns[role] for role in (*roles, asked, "passages") if role in columns}
    layout = Layout(form, used, unread=[name for name in names if name not in used.values()])
    if form in ("thumbs", "sentences"):
        labels = Counter(label for row in rows for label in labels_of(row, layout))
        fine = _good(labels, key_of(used.get("thumb") or used.get("label") or ""), form, good)
        return Layout(form, used, fine, layout.unread)
    return layout


def _column(rows: Sequence[Row], names: Sequence[str], role: str) -> str | None:
    """The likeliest column of a role, whose values all are what the role holds."""
    by_key = {key_of(name): name for name in reversed(names)}
    for key in NAMES[role]:
        values = [row[by_key[key]] for row in rows if row.get(by_key[key]) is not None] if key in by_key else []
        if values and all(map(_HOLDS[role], values)):
            return by_key[key]
    return None


def _form(columns: Mapping[str, str], rows: Sequence[Row]) -> tuple[Form | None, tuple[str, ...]]:
    """The form of the marks with the roles that it takes; None where there are none."""
    answers = "answer" in columns or "messages" in columns
    if {"chosen", "rejected"} <= columns.keys():
        return "pairs", ("chosen", "rejected")
    if {"first", "second", "winner"} <= columns.keys():
        return "pairs", ("first", "second", "winner")
    if answers and ("spans" in columns or any(spans_of_talk(row.get(columns.get("messages", ""))) for row in rows)):
        return "spans", ("answer", "spans", "reference")
    if {"sentence", "label"} <= columns.keys():
        return "sentences", ("answer", "sentence", "label", "reference")
    if "sentences" in columns:
        return "sentences", ("answer", "sentences", "labels", "reference")
    return ("thumbs", ("answer", "thumb", "reference")) if answers and "thumb" in columns else (None, ())


def spans_of_talk(talk: Any) -> list[Any] | None:
    """The marks that stand in the last message of a conversation; None where there are none."""
    if not _is_talk(talk):
        return None
    return next((value for key, value in talk[-1].items() if key_of(key) in SPANS and isinstance(value, list)), None)


def part_of(item: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first value that an object has under one of some names; None where it has none."""
    held = {key_of(key): value for key, value in reversed([*item.items()])}
    return next((held[name] for name in names if held.get(name) is not None), None)


def labels_of(row: Row, layout: Layout) -> list[str]:
    """The labels of a row's sentences, or its thumb; a blank one is ""."""
    if "sentences" in layout.columns:
        sentences, labels = layout.value(row, "sentences") or [], layout.value(row, "labels")
        labels = labels or [part_of(item, LABEL) if isinstance(item, Mapping) else None for item in sentences]
    else:
        labels = [layout.value(row, "thumb" if layout.form == "thumbs" else "label")]
    return ["" if label is None else word(label) for label in labels]


def _good(labels: Counter[str], key: str, form: Form, given: Collection[Any]) -> frozenset[str]:
    """Which labels mean that nothing is wrong. Raises ConfigError where the user has to say it."""
    listed = ", ".join(repr(label) for label, _ in labels.most_common(6))
    if len(labels) > _MOST_LABELS:
        raise ConfigError(f"data: {key} has {len(labels)} values ({listed}, …): expected a label, not text")
    good = {word(value) for value in given}
    if unknown := good - labels.keys():
        raise ConfigError(f"good: {sorted(unknown)[0]!r} is no value of {key}, which has {listed}")
    marks = labels.keys() - {""}
    if not good and form == "thumbs" and marks <= {*UP, *DOWN} and (key != "label" or "true" in marks):
        good = marks & {*UP}
    elif not good and key in (*_OF_FAULTS, *_OF_MERITS) and marks <= {*UP, *DOWN}:
        good = marks & {*(DOWN if key in _OF_FAULTS else UP)}
    elif not good:
        good = marks & {*_FINE} or labels.keys() & {""}
    if not good or not marks - good:
        raise ConfigError(f"data: {key} has the values {listed}: which mean that nothing is wrong? good=[VALUE,…]")
    return frozenset(good)
