"""Queries with the passages that answer them and some that do not: what dense passage retrieval learns from.

Reads JSON lines of `{"id", "turns" or "query", "positives", "negatives", "hard_negatives"}`, each passage `{"id",
"title", "text"}`. Other keys are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, records_by_id, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage


@dataclass(frozen=True)
class DprRecord:
    """A query and its passages; each list holds a passage once.

    Attributes:
        id: unique within the file.
        turns: of the query, oldest first; at least one.
        positives: passages that answer it; at least one.
        negatives: passages that do not.
        hard_negatives: passages that do not, and that a retriever takes for ones that do.
    """

    id: str
    turns: tuple[str, ...]
    positives: tuple[Passage, ...]
    negatives: tuple[Passage, ...] = ()
    hard_negatives: tuple[Passage, ...] = ()


def read_dpr_records(path: str | Path) -> list[DprRecord]:
    """All records of a file, in order. A passage that a list holds twice is read once.

    Raises:
        DataError: naming file, record (from 0) and field: the file is missing, damaged or empty; a record has no query
            or two, no positive, a passage without text, or a negative that is a positive too; an id of records occurs
            twice, or one of passages with different texts or titles.
    """
    rows = read_jsonl(path)
    if not rows:
        raise DataError("no record, expected one a line", file=path)
    passages: dict[str, Passage] = {}
    return list(records_by_id(rows, lambda row, _: _parse(row, passages), path).values())


def passage_rows(names: Iterable[str], known: Mapping[str, Passage]) -> list[dict[str, str]]:
    """Passages as a record holds them. White space in a text is collapsed, which a BERT does not see."""
    passages = [known[name] for name in names]
    return [{"id": one.id, "title": one.title, "text": " ".join(one.text.split())} for one in passages]


def _parse(row: Mapping[str, Any], known: dict[str, Passage]) -> DprRecord:
    name = require_text(get_field(row, "id"), "id")
    turns = _turns(row)
    positives = _passages(get_field(row, "positives"), "positives", known)
    require(bool(positives), "expected at least one passage, got none", "positives")
    gold = {passage.id for passage in positives}
    others = []
    for key in ("negatives", "hard_negatives"):
        others.append(_passages(row[key] if row.get(key) is not None else [], key, known))
        for passage in others[-1]:
            require(passage.id not in gold, f"passage {passage.id!r} is also among the positives", key)
    return DprRecord(name, turns, positives, *others)


def _turns(row: Mapping[str, Any]) -> tuple[str, ...]:
    present = [key for key in ("turns", "query") if row.get(key) is not None]
    require(len(present) == 1, f"expected turns or query, got {'both' if present else 'neither'}", "turns")
    if present == ["query"]:
        turns = require_text(row["query"], "query").split(PART_SEPARATOR)
    else:
        turns = [require_text(turn, f"turns[{i}]") for i, turn in enumerate(as_list(row["turns"], "turns"))]
    require(bool(turns), "expected at least one turn, got none", "turns")
    for i, turn in enumerate(turns):
        require(PART_SEPARATOR not in turn, f"holds {PART_SEPARATOR!r}, which stands between turns", f"turns[{i}]")
    return tuple(turns)


def _passages(value: Any, field: str, by_id: dict[str, Passage]) -> tuple[Passage, ...]:
    distinct: dict[str, Passage] = {}
    for i, item in enumerate(as_list(value, field)):
        where = f"{field}[{i}]"
        passage = _passage(as_object(item, where), where)
        known = by_id.setdefault(passage.id, passage)
        same = (known.title, known.text) == (passage.title, passage.text)
        require(same, f"passage {passage.id!r} has another title or text elsewhere in the file", where)
        distinct[passage.id] = known
    return tuple(distinct.values())


def _passage(row: Mapping[str, Any], where: str) -> Passage:
    title = row.get("title")
    return Passage.uncut(
        require_text(get_field(row, "id", f"{where}."), f"{where}.id"),
        require_text(get_field(row, "text", f"{where}."), f"{where}.text"),
        "" if title is None else require_text(title, f"{where}.title", empty=True),
    )
