"""INSCIT's files: one JSON object of all conversations, as published, or one conversation a line.

Reads the published layout (`data/dev.json` of the authors' repository). Keys that it does not know are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.inscit.data.records import EvidencePassage, InscitConversation, InscitLabel, InscitTurn

_CONVERSATION = {"id", "seedArticle", "turns"}
_TURN = {"context", "prevEvidence", "labels"}
_LABEL = {"responseType", "response", "evidence"}
_PASSAGE = {"passage_id", "passage_text", "passage_titles"}


@dataclass
class InscitReading:
    """What a file holds.

    Attributes:
        conversations: in the file's order.
        unknown_keys: how often each key occurs that the format does not have, by its place.
    """

    conversations: list[InscitConversation] = field(default_factory=list)
    unknown_keys: Counter[str] = field(default_factory=Counter)


def read_inscit(path: str | Path, known_passages: Collection[str] | None = None) -> InscitReading:
    """Read a file of conversations.

    Args:
        path: JSON as published, or JSON lines (`.jsonl`) of one conversation each, with an `id`.
        known_passages: ids of the corpus; None does not check them.

    Raises:
        DataError: it is damaged, breaks a rule of the records, or evidence is not in the corpus; the error names file,
            conversation, turn and field.
    """
    path, reading = Path(path), InscitReading()
    for name, value in _rows(path):
        try:
            reading.conversations.append(_conversation(name, value, reading.unknown_keys, known_passages))
        except DataError as error:
            raise error.at(file=path) from None
    if not reading.conversations:
        raise DataError("expected at least one conversation", file=path)
    return reading


def check_inscit(path: str, settings: Mapping[str, Any] | None = None) -> None:
    """Require a file of conversations; errors as of `read_inscit`."""
    read_inscit(path)


INSCIT_DATA: Mapping[str, Any] = {"data": check_inscit}
"""The `input_checks` of a job whose `data` is such a file."""


def write_inscit(path: str | Path, conversations: Iterable[InscitConversation]) -> None:
    """Write what `read_inscit` reads: JSON lines to a `.jsonl` file, the published layout to any other."""
    rows = [_row(conversation) for conversation in conversations]
    if Path(path).suffix == ".jsonl":
        write_jsonl(path, rows)
    else:
        write_json(path, {row.pop("id"): row for row in rows})


def _rows(path: Path) -> list[tuple[str, Any]]:
    if path.suffix == ".jsonl":
        rows: list[tuple[str, Any]] = []
        for number, row in enumerate(read_jsonl(path)):
            if not isinstance(row.get("id"), str):
                raise DataError("expected the id of a conversation", file=path, record=number, field="id")
            rows.append((row["id"], row))
    else:
        value = read_json(path)
        if not isinstance(value, Mapping):
            raise DataError("expected one object of conversations by id", file=path)
        rows = list(value.items())
    twice = [name for name, count in Counter(name for name, _ in rows).items() if count > 1]
    if twice:
        raise DataError("occurs twice", file=path, record=twice[0])
    return rows


def _conversation(
    name: str, value: Any, unknown: Counter[str], known_passages: Collection[str] | None
) -> InscitConversation:
    where = f"conversation {name!r}"
    try:
        row = as_object(value, "(conversation)")
        _count(row, _CONVERSATION, "", unknown)
        seed = as_object(get_field(row, "seedArticle"), "seedArticle")
        article = require_text(get_field(seed, "title", "seedArticle."), "seedArticle.title")
        turns = as_list(get_field(row, "turns"), "turns")
        require(len(turns) > 0, "expected at least one turn", "turns")
    except DataError as error:
        raise error.at(record=where) from None
    made = []
    for number, turn in enumerate(turns, start=1):
        try:
            made.append(_turn(name, number, as_object(turn, "(turn)"), unknown, known_passages))
            if number > 1:
                before = made[-2].context
                grown = made[-1].context[: len(before)] == before and len(made[-1].context) == len(before) + 2
                require(grown, "does not continue the turn before it", "context")
        except DataError as error:
            raise error.at(record=f"{where}, turn {number}") from None
    level = seed.get("level")
    return InscitConversation(
        name, article, str(seed.get("topic", "")), level if isinstance(level, int) else None, tuple(made)
    )


def _turn(
    conversation: str, number: int, row: Mapping[str, Any], unknown: Counter[str], known: Collection[str] | None
) -> InscitTurn:
    _count(row, _TURN, "turns.", unknown)
    earlier = [
        _evidence(part, f"prevEvidence[{i}]", unknown, known)
        for i, part in enumerate(as_list(get_field(row, "prevEvidence"), "prevEvidence"))
    ]
    labels = []
    for i, value in enumerate(as_list(get_field(row, "labels"), "labels")):
        try:
            label = as_object(value, "(label)")
            _count(label, _LABEL, "turns.labels.", unknown)
            kind, response = get_field(label, "responseType"), get_field(label, "response")
            evidence = _evidence(get_field(label, "evidence"), "evidence", unknown, known)
            labels.append(InscitLabel(kind, response, evidence))
        except DataError as error:
            raise DataError(error.problem, field=f"labels[{i}].{error.field or ''}".rstrip(".")) from None
    context = tuple(text_list(get_field(row, "context"), "context"))
    return InscitTurn(conversation, number, context, tuple(earlier), tuple(labels))


def _evidence(
    value: Any, where: str, unknown: Counter[str], known: Collection[str] | None
) -> tuple[EvidencePassage, ...]:
    evidence = []
    for i, part in enumerate(as_list(value, where)):
        row = as_object(part, f"{where}[{i}]")
        _count(row, _PASSAGE, "passage.", unknown)
        name = require_text(get_field(row, "passage_id", f"{where}[{i}]."), f"{where}[{i}].passage_id")
        text = require_text(get_field(row, "passage_text", f"{where}[{i}]."), f"{where}[{i}].passage_text")
        titles = text_list(get_field(row, "passage_titles", f"{where}[{i}]."), f"{where}[{i}].passage_titles")
        inside = known is None or name in known
        require(inside, f"{name!r} is no passage of the corpus", f"{where}[{i}].passage_id")
        evidence.append(EvidencePassage(name, text, tuple(titles)))
    return tuple(evidence)


def _count(row: Mapping[str, Any], known: set[str], place: str, unknown: Counter[str]) -> None:
    unknown.update(f"{place}{key}" for key in row if key not in known)


def _row(conversation: InscitConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "seedArticle": {"title": conversation.article, "topic": conversation.topic, "level": conversation.level},
        "turns": [
            {
                "context": list(turn.context),
                "prevEvidence": [_passages(part) for part in turn.earlier],
                "labels": [
                    {
                        "responseType": label.response_type,
                        "response": label.response,
                        "evidence": _passages(label.evidence),
                    }
                    for label in turn.labels
                ],
            }
            for turn in conversation.turns
        ],
    }


def _passages(evidence: Iterable[EvidencePassage]) -> list[dict[str, Any]]:
    return [{"passage_id": one.id, "passage_text": one.text, "passage_titles": list(one.titles)} for one in evidence]
