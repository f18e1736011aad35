"""What Potato is given: its configuration, tasks, and texts that it counts as we do.

It counts wrongly where white space stands in runs and where lines break, and takes out what looks like an HTML tag. So
people are shown a text without any of these, from which places lead back to ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.annotation.tools.forms import NO_ERROR, NOTHING_MISSING, comparison_controls
from finegrained_rlhf.annotation.tools.layout import PassageLayout

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
