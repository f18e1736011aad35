"""What Potato keeps of a user, in the form that all tools share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from finegrained_rlhf.annotation.tools.forms import Highlight, compared_answers, evidence_places, missing_rows
from finegrained_rlhf.annotation.tools.layout import PassageLayout
from finegrained_rlhf.annotation.tools.potato.tasks import ShownText
from finegrained_rlhf.core.checks import as_index, as_list, as_object, get_field, require
from finegrained_rlhf.core.errors import DataError

_NOTE = re.compile(r"\s*(missing\s+)?(\d+)\s*(?(1)also|(evidence)?)\s*:\s?(.*)", re.IGNORECASE)
Places = list[list[int]]
"""Sentences, each [passage, sentence]."""


def finished_task(task: Mapping[str, Any], labels: Any, spans: Any, taxonomy: Mapping[str, Any]) -> dict[str, Any]:
    """What was done to a task.

    Args:
        task: as tools are given it.
        labels: what Potato keeps of choices and boxes, [label, value] each.
        spans: what it keeps of marks, [span, 1] each.
        taxonomy: as tools are given it.

    Raises:
        DataError: it cannot be.
    """
    choices = _choices(labels)
    text = "" if task["marked"] is None else task["answers"][task["marked"]]
    layout = PassageLayout.of(task["passages"])
    shown = {"errors": ShownText.of(text), "missing": ShownText.of(layout.text)}
    marks = [_mark(row, f"spans[{i}]", shown) for i, row in enumerate(as_list(spans, "spans"))]
    errors, missing = ([mark for mark in marks if mark["schema"] == name] for name in ("errors", "missing"))
    numbers = {
        one["where"]: number
        for part in (errors, missing)
        for number, one in enumerate(sorted(part, key=lambda one: (one["start"], one["end"])), start=1)
    }
    notes, evidence, also = _notes(choices.get("notes", ""), len(errors), len(missing))
    highlights = [
        Highlight(one["name"], one["start"], one["end"], one["where"], also.get(numbers[one["where"]], ()))
        for one in missing
    ]
    return {
        "item": task["item"],
        "hash": task["hash"],
        "order": task["order"],
        "marked": task["marked"],
        "status": "done",
        "spans": [
            {
                "start": one["start"],
                "end": one["end"],
                "text": text[one["start"] : one["end"]],
                "type": one["name"],
                "evidence": evidence.get(numbers[one["where"]], []),
                "note": notes.get(numbers[one["where"]], ""),
            }
            for one in errors
        ],
        "no_error": "no_error" in choices,
        "missing": missing_rows(highlights, layout),
        "nothing_missing": "nothing_missing" in choices,
        "correction": _correction(choices.get("correction"), text) if taxonomy["correction"] else None,
        **compared_answers(taxonomy, len(task["answers"]), choices.get),
        "suggestions": {"shown": 0, "accepted": 0, "refused": 0},
    }


def _choices(labels: Any) -> dict[str, str]:
    """What was chosen or written, by the name of its scheme."""
    choices: dict[str, str] = {}
    for i, row in enumerate(as_list(labels, "labels")):
        pair = as_list(row, f"labels[{i}]")
        require(len(pair) == 2, "expected a label and its value", f"labels[{i}]")
        label, value = as_object(pair[0], f"labels[{i}]"), pair[1]
        name = str(get_field(label, "schema"))
        if value in (None, False, "", "false"):
            continue
        require(name not in choices, "two choices, expected one", name)
        choices[name] = str(value)
    return choices


def _mark(row: Any, where: str, shown: Mapping[str, ShownText]) -> dict[str, Any]:
    pair = as_list(row, where)
    require(bool(pair), "expected a span", where)
    mark = as_object(pair[0], where)
    start, end = (as_index(get_field(mark, key, f"{where}."), f"{where}.{key}") for key in ("start", "end"))
    require(start < end, f"expected start < end, got {start} and {end}", where)
    schema = get_field(mark, "schema", f"{where}.")
    require(schema in shown, f"a mark of {schema!r}, which is not asked for", where)
    require(end <= len(shown[schema].text), f"ends at {end}, behind the text", where)
    start, end = shown[schema].original(start, end)
    name = str(get_field(mark, "name", f"{where}."))
    return {"schema": schema, "name": name, "start": start, "end": end, "where": where}


def _notes(text: str, marks: int, missing: int) -> tuple[dict[int, str], dict[int, Places], dict[int, Places]]:
    """Notes and evidence by the number of the mark, and further sentences by the number of what is missing.

    A line that does not begin so goes on with the note above it.
    """
    notes: dict[int, str] = {}
    evidence: dict[int, Places] = {}
    also: dict[int, Places] = {}
    last: int | None = None
    for line in text.splitlines():
        match = _NOTE.fullmatch(line)
        if match is None:
            require(last is not None or not line.strip(), f"expected 'NUMBER: note', got {line!r}", "notes")
            if last is not None:
                notes[last] += f"\n{line}"
            continue
        gap, digits, of_evidence, note = match.groups()
        what, number, count = ("missing", int(digits), missing) if gap else ("mark", int(digits), marks)
        require(1 <= number <= count, f"speaks of {what} {number} of {count}", "notes")
        known: Mapping[int, Any] = also if gap else evidence if of_evidence else notes
        require(number not in known, f"speaks of {what} {number} twice", "notes")
        if gap or of_evidence:
            (also if gap else evidence)[number] = evidence_places(note, f"{what} {number}")
        else:
            notes[number] = note
        last = None if gap or of_evidence else number
    return notes, evidence, also


def _correction(value: str | None, text: str) -> str:
    """The corrected answer; a box that was left alone says that nothing is to be corrected."""
    if value is None:
        return text
    try:
        edited = json.loads(value)["edited_text"]
    except (ValueError, KeyError, TypeError):
        raise DataError("expected what the box for corrections stores", field="correction") from None
    require(isinstance(edited, str), "expected a text", "correction")
    same = _plain(edited) == _plain(text)
    return text if same else str(edited)


def _plain(text: str) -> str:
    """With line feeds alone, as a text box has them."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
