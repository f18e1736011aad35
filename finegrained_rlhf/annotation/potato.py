"""Potato (2.12) as an annotation tool: one configuration and one server an annotator, merged on our item ids.

Potato stores offsets in characters and no words beside them. It counts wrongly where white space stands in runs and
where lines break, and takes out what looks like an HTML tag. So people are shown a text without any of these
(`ShownText`), from which places lead back to ours, and the id of a task carries the hash of its text: work on other
texts is not taken for work on ours. It has no box for each mark: what is said about marks stands in one box, a line a
mark, counted from left to right. It shows no suggestions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from finegrained_rlhf.annotation.forms import (
    NO_ERROR,
    NOTHING_MISSING,
    Highlight,
    PassageLayout,
    compared_answers,
    comparison_controls,
    evidence_places,
    missing_rows,
)
from finegrained_rlhf.annotation.project import EXPORT_FORMAT
from finegrained_rlhf.core.checks import as_index, as_list, as_object, get_field, require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json, write_text

_NOTES = (
    "About your marks, counted from left to right, a line each: '2: what is repeated, or why', '2 evidence: 1.3, 1.4' "
    "for sentences 3 and 4 of passage 1. About what is missing, counted likewise: 'missing 2 also: 1.6' for a further "
    "sentence of the same piece"
)


def user_of(annotator: str) -> str:
    """The name under which an annotator logs in."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", annotator)


def potato_config(payload: Mapping[str, Any]) -> dict[str, Any]:
    """What `config.yaml` says."""
    taxonomy = payload["taxonomy"]
    answers = max(len(task["answers"]) for task in payload["tasks"])
    marks = any(task["marked"] is not None for task in payload["tasks"])
    fields = [_field("question", "Question"), _field("passages", "Passages", bool(taxonomy["missing"]))]
    if any(task["reference"] for task in payload["tasks"]):
        fields.append(_field("reference", "A human reference answer"))
    schemes: list[dict[str, Any]] = []
    if marks:
        fields.append(_field("answer", "Answer", bool(taxonomy["categories"])))
        schemes += _marking(taxonomy)
    controls = comparison_controls(taxonomy, answers)
    if controls:
        fields += [_field(f"answer_{i}", f"Answer {i}") for i in range(1, answers + 1)]
    for name, choices in controls.items():
        title = "Place of answer " if name.startswith("place") else "Answers "
        title += " and ".join(name.split("_")[1:])
        schemes.append({"annotation_type": "radio", "name": name, "description": title, "labels": list(choices)})
    return {
        "annotation_task_name": payload["project"],
        "task_dir": ".",
        "output_annotation_dir": "annotation_output",
        "output_annotation_format": "json",
        "data_files": ["tasks.json"],
        "item_properties": {"id_key": "id", "text_key": "answer" if marks else "question"},
        "user_config": {"allow_all_users": False, "users": [user_of(payload["annotator"])]},
        "require_password": False,
        "assignment_strategy": "fixed_order",
        "instance_display": {"fields": fields},
        "annotation_schemes": schemes,
    }


def _field(key: str, label: str, target: bool = False) -> dict[str, Any]:
    return {"key": key, "type": "text", "label": label, **({"span_target": True} if target else {})}


def _marking(taxonomy: Mapping[str, Any]) -> list[dict[str, Any]]:
    schemes = []
    if taxonomy["categories"]:
        types = [kind for category in taxonomy["categories"] for kind in category["types"]]
        schemes.append(_spans("errors", "Mark the errors", "answer", types))
        schemes.append(_tick("no_error", NO_ERROR))
        schemes.append(_text("notes", _NOTES))
    if taxonomy["missing"]:
        schemes.append(_spans("missing", "Highlight in the passages what is missing", "passages", taxonomy["missing"]))
        schemes.append(_tick("nothing_missing", NOTHING_MISSING))
    if taxonomy["correction"]:
        title = "Corrected answer, with as few changes as you can"
        schemes.append(
            {"annotation_type": "text_edit", "name": "correction", "description": title, "source_field": "correct_this"}
        )
    return schemes


def _spans(name: str, title: str, field: str, types: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    labels = [
        {
            "name": kind["name"],
            "displayed_label": kind["label"],
            "tooltip": kind["description"],
            "key_value": kind["key"],
            "color": kind["colour"],
        }
        for kind in types
    ]
    return {
        "annotation_type": "span",
        "name": name,
        "description": title,
        "target_field": field,
        "labels": labels,
    }


def _tick(name: str, title: str) -> dict[str, Any]:
    label = {"name": name, "displayed_label": title}
    return {"annotation_type": "multiselect", "name": name, "description": title, "labels": [label]}


def _text(name: str, title: str) -> dict[str, Any]:
    box = {"on": True, "rows": 3}
    return {"annotation_type": "text", "name": name, "description": title, "textarea": box}


def potato_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """One task of `tasks.json`."""
    marked = task["marked"]
    text = "" if marked is None else task["answers"][marked]
    return {
        "id": task_id(task),
        "question": ShownText.of(task["question"]).text,
        "passages": ShownText.of(PassageLayout.of(task["passages"]).text or "(none)").text,
        "reference": ShownText.of(task["reference"] or "(none)").text,
        "answer": ShownText.of(text).text,
        "correct_this": text,
        **{f"answer_{i}": ShownText.of(answer).text for i, answer in enumerate(task["answers"], start=1)},
    }


@dataclass(frozen=True)
class ShownText:
    """A text as Potato shows it: one space for a run of white space, ` ¶ ` where lines break, nothing of it at the
    ends, and `＜` for `<`.

    Attributes:
        text: what is shown.
        places: where each character of it comes from, the first of a run of white space.
    """

    text: str
    places: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> ShownText:
        """The shown form of a text."""
        shown, places = [], []
        for match in re.finditer(r"\s+|\S", text):
            piece = match.group()
            if piece.isspace():
                if match.start() == 0 or match.end() == len(text):
                    continue
                piece = " ¶ " if "\n" in piece or "\r" in piece else " "
            shown.append("＜" if piece == "<" else piece)
            places += [match.start()] * len(shown[-1])
        return cls("".join(shown), tuple(places))

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Where a span of the shown text, start < end, lies in the text itself."""
        return self.places[start], self.places[end - 1] + 1


def task_id(task: Mapping[str, Any]) -> str:
    """The id of a task: our item's, and the hash of what is shown."""
    return f"{task['item']} {task['hash']}"


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


class Potato:
    """See `AnnotationTool`."""

    def write_tasks(self, directory: Path, payload: Mapping[str, Any]) -> list[Path]:
        """`config.yaml` for `potato start`, and `tasks.json`.

        Raises:
            ConfigError: spans are suggested, which Potato does not show.
        """
        if any(task["suggestions"] for task in payload["tasks"]):
            raise ConfigError("tool: potato shows no suggestions; set preannotate=null, or take another tool")
        config, tasks = directory / "config.yaml", directory / "tasks.json"
        write_text(config, yaml.safe_dump(potato_config(payload), sort_keys=False, allow_unicode=True, width=120))
        write_json(tasks, [potato_task(task) for task in payload["tasks"]])
        return [config, tasks]

    def read_export(self, path: Path, payload: Mapping[str, Any] | None) -> dict[str, Any]:
        """The `user_state.json` of an annotator.

        Raises:
            DataError: no annotator is named, the file is no such state, is another user's, or holds tasks that are
                not ours.
        """
        if payload is None:
            raise DataError("Potato does not name our project: give exports={NAME: FILE}", file=path)
        state = as_object(read_json(path), "(export)")
        user, expected = get_field(state, "user_id"), user_of(payload["annotator"])
        require(user == expected, f"expected {expected!r}, got {user!r}", "user_id")
        labels, spans, work = (
            as_object(state.get(f"instance_id_to_{name}") or {}, f"instance_id_to_{name}")
            for name in ("label_to_value", "span_to_value", "behavioral_data")
        )
        tasks = {task_id(task): task for task in payload["tasks"]}
        rows = []
        for name in dict.fromkeys([*labels, *spans]):
            if name not in tasks:
                raise DataError(
                    f"task {name!r} is not among {payload['annotator']}'s, or had another text", record=name
                )
            try:
                row = finished_task(tasks[name], labels.get(name) or [], spans.get(name) or [], payload["taxonomy"])
            except DataError as error:
                where = f"project {payload['project']}, task {tasks[name]['item']!r}"
                raise error.at(record=where) from None
            spent = as_object(work.get(name) or {}, "instance_id_to_behavioral_data").get("total_time_ms")
            rows.append({**row, "seconds": None if spent is None else spent / 1000})
        named = {key: payload[key] for key in ("project", "annotator", "guideline_version")}
        return {"format": EXPORT_FORMAT, **named, "taxonomy": payload["taxonomy"]["name"], "tasks": rows}
