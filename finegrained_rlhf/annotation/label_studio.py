"""Label Studio (1.23) as an annotation tool: one project an annotator, merged on our item ids.

The free edition keeps annotators of one project apart in its queue alone: whoever opens a task sees what others
marked, any account may change another's annotation or delete the project, and a third annotation is accepted. So each
annotator gets a project of his own. Offsets of its export are UTF-16 units, which reading puts right. It checks neither
that spans do not overlap nor that what is needed is filled in: reading does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from finegrained_rlhf.annotation.annotations import utf16_offsets
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
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json, write_text


class LabelStudio:
    """See `AnnotationTool`."""

    def write_tasks(self, directory: Path, payload: Mapping[str, Any]) -> list[Path]:
        """`label_config.xml` for the project's labelling interface, `tasks.json` for its import."""
        config, tasks = directory / "label_config.xml", directory / "tasks.json"
        write_text(config, label_config(payload["taxonomy"], max(len(task["answers"]) for task in payload["tasks"])))
        write_json(tasks, [_task(task) for task in payload["tasks"]])
        return [config, tasks]

    def read_export(self, path: Path, payload: Mapping[str, Any] | None) -> dict[str, Any]:
        """The JSON export of an annotator's project.

        Raises:
            DataError: no annotator is named, the file is no such export, a task is none of ours, or has several
                finished annotations, or annotations by several accounts.
        """
        if payload is None:
            raise DataError("Label Studio does not name our annotator: give exports={NAME: FILE}", file=path)
        tasks = {task["item"]: task for task in payload["tasks"]}
        rows, accounts = [], set[Any]()
        for number, row in enumerate(as_list(read_json(path), "(export)")):
            task = as_object(row, f"[{number}]")
            data = as_object(get_field(task, "data"), "data")
            name = get_field(data, "item")
            if name not in tasks:
                raise DataError(
                    f"item {name!r} is not among {payload['annotator']}'s", record=number, field="data.item"
                )
            try:
                made = _annotation(task, data, tasks[name], payload["taxonomy"], accounts)
            except DataError as error:
                raise error.at(record=f"project {payload['project']}, task {name!r}") from None
            if made is not None:
                rows.append(made)
        keys = ("project", "annotator", "guideline_version")
        named = {key: payload[key] for key in keys}
        return {"format": EXPORT_FORMAT, **named, "taxonomy": payload["taxonomy"]["name"], "tasks": rows}


def label_config(taxonomy: Mapping[str, Any], answers: int) -> str:
    """The XML of the labelling interface.

    Args:
        taxonomy: as tools are given it.
        answers: of the task that has most.
    """
    lines = [
        "<View>",
        '  <Header value="$question"/>',
        '  <Text name="passages" value="$passages" granularity="word"/>',
    ]
    lines += ['  <Header value="Answer"/>', '  <Text name="answer" value="$answer" granularity="word"/>']
    region = 'toName="answer" perRegion="true"'
    if taxonomy["categories"]:
        types = [kind for category in taxonomy["categories"] for kind in category["types"]]
        lines += _labels("errors", "answer", types)
        lines.append(
            '  <TextArea name="note" toName="answer" perRegion="true" placeholder="Note, or what is repeated"/>'
        )
        lines.append(f'  <TextArea name="evidence" {region} placeholder="Evidence: passage.sentence, …"/>')
        lines += _choice("no_error", "answer", NO_ERROR)
    if taxonomy["missing"]:
        lines += _labels("missing", "passages", taxonomy["missing"])
        also = "Further sentences of the same piece: passage.sentence, …"
        lines.append(f'  <TextArea name="also" toName="passages" perRegion="true" placeholder="{also}"/>')
        lines += _choice("nothing_missing", "answer", NOTHING_MISSING)
    if taxonomy["correction"]:
        lines.append('  <Header value="Corrected answer, with as few changes as you can"/>')
        lines.append(
            '  <TextArea name="correction" toName="answer" value="$answer" required="true" maxSubmissions="1"/>'
        )
    if taxonomy["preferences"] and answers > 1:
        for number in range(1, answers + 1):
            lines.append(f'  <Header value="Answer {number}"/>')
            lines.append(f'  <Text name="shown_{number}" value="$answer_{number}"/>')
        for name, choices in comparison_controls(taxonomy, answers).items():
            shown = f"shown_{name.split('_')[1]}"
            title = "Place of answer" if name.startswith("place") else "Answers"
            lines.append(f'  <Header value="{title} {" and ".join(name.split("_")[1:])}"/>')
            lines.append(f'  <Choices name="{name}" toName="{shown}" choice="single" showInline="true">')
            lines += [f"    <Choice value={quoteattr(choice)}/>" for choice in choices]
            lines.append("  </Choices>")
    return "\n".join([*lines, "</View>", ""])


def _labels(name: str, to: str, types: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f'  <Labels name="{name}" toName="{to}" choice="single">']
    for kind in types:
        looks = (
            f"alias={quoteattr(kind['name'])} hotkey={quoteattr(kind['key'])} background={quoteattr(kind['colour'])}"
        )
        lines.append(f"    <Label value={quoteattr(kind['label'])} {looks} hint={quoteattr(kind['description'])}/>")
    return [*lines, "  </Labels>"]


def _choice(name: str, to: str, value: str) -> list[str]:
    choice = f'    <Choice value="{value}"/>'
    return [f'  <Choices name="{name}" toName="{to}" choice="single">', choice, "  </Choices>"]


def _task(task: Mapping[str, Any]) -> dict[str, Any]:
    marked = task["marked"]
    text = "" if marked is None else task["answers"][marked]
    data = {
        "item": task["item"],
        "hash": task["hash"],
        "order": task["order"],
        "question": task["question"],
        "passages": PassageLayout.of(task["passages"]).text or "(none)",
        "answer": text,
        **{f"answer_{i}": answer for i, answer in enumerate(task["answers"], start=1)},
    }
    if not task["suggestions"]:
        return {"data": data}
    result = [_suggested(one, text) for one in task["suggestions"]]
    prediction: dict[str, Any] = {"model_version": task["suggestions"][0]["model_version"], "result": result}
    scores = [one["score"] for one in task["suggestions"]]
    if None not in scores:
        prediction["score"] = min(scores)
    return {"data": data, "predictions": [prediction]}


def _suggested(one: Mapping[str, Any], text: str) -> dict[str, Any]:
    start, end = (len(text[: one[key]].encode("utf-16-le")) // 2 for key in ("start", "end"))
    value = {"start": start, "end": end, "text": text[one["start"] : one["end"]], "labels": [one["type"]]}
    return {"from_name": "errors", "to_name": "answer", "type": "labels", "value": value}


def _annotation(
    task: Mapping[str, Any],
    data: Mapping[str, Any],
    ours: Mapping[str, Any],
    taxonomy: Mapping[str, Any],
    accounts: set[Any],
) -> dict[str, Any] | None:
    """The one annotation of a task, in the form that all tools share; None where nobody began it."""
    made, finished = annotations_of_task(task)
    accounts |= {account_of(one.get("completed_by")) for one in made}
    require(len(accounts) <= 1, f"annotations by {len(accounts)} accounts, expected one a project", "completed_by")
    if not made:
        return None
    common = {"item": ours["item"], "hash": data.get("hash"), "order": data.get("order"), "marked": ours["marked"]}
    one = finished[0] if finished else made[0]
    seconds = {"seconds": one.get("lead_time")}
    if not finished:
        return {**common, **seconds, "status": "skipped"}
    return {
        **common,
        **seconds,
        "status": "done",
        **_result(as_list(get_field(one, "result"), "result"), ours, taxonomy),
    }


def annotations_of_task(task: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """All annotations of an exported task, and the finished one, if there is one.

    Raises:
        DataError: several are finished.
    """
    made = [as_object(one, "annotations") for one in as_list(get_field(task, "annotations"), "annotations")]
    finished = [one for one in made if not one.get("was_cancelled")]
    require(len(finished) <= 1, f"{len(finished)} finished annotations, expected one a project", "annotations")
    return made, finished


def account_of(completed_by: Any) -> Any:
    """The account that made an annotation: a number, or an object with an `id`."""
    return completed_by.get("id") if isinstance(completed_by, Mapping) else completed_by


def _result(result: Sequence[Any], ours: Mapping[str, Any], taxonomy: Mapping[str, Any]) -> dict[str, Any]:
    rows = [as_object(row, f"result[{i}]") for i, row in enumerate(result)]
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(str(get_field(row, "from_name")), []).append(row)
    notes, evidence = (_texts(by_name.get(name, [])) for name in ("note", "evidence"))
    names = {kind["label"]: kind["name"] for c in taxonomy["categories"] for kind in c["types"]}
    names |= {kind["label"]: kind["name"] for kind in taxonomy["missing"]}
    spans = []
    for row in by_name.get("errors", []):
        value, region = as_object(get_field(row, "value"), "value"), str(row.get("id"))
        label = _label(value, region)
        spans.append(
            {
                "start": value.get("start"),
                "end": value.get("end"),
                "text": value.get("text"),
                "type": names.get(label, label),
                "evidence": evidence_places(evidence.get(region, ""), f"region {region}"),
                "note": notes.get(region, ""),
            }
        )
    corrections = list(_texts(by_name.get("correction", [])).values())
    return {
        "spans": spans,
        "no_error": bool(by_name.get("no_error")),
        "missing": _missing(by_name.get("missing", []), _texts(by_name.get("also", [])), ours, names),
        "nothing_missing": bool(by_name.get("nothing_missing")),
        "correction": corrections[0] if corrections else None,
        **compared_answers(taxonomy, len(ours["answers"]), lambda name: _chosen(by_name.get(name, []))),
        "suggestions": {"shown": len(ours["suggestions"]), "accepted": 0, "refused": 0},
    }


def _label(value: Mapping[str, Any], region: str) -> str:
    labels = as_list(get_field(value, "labels", f"region {region}: "), f"region {region}: labels")
    require(len(labels) == 1, f"expected one label, got {labels}", f"region {region}")
    return str(labels[0])


def _texts(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The text of each region, or of the whole task, by the region's id."""
    texts = {}
    for row in rows:
        text = as_object(get_field(row, "value"), "value").get("text", "")
        texts[str(row.get("id"))] = "\n".join(text) if isinstance(text, list) else str(text)
    return texts


def _missing(
    rows: Sequence[Mapping[str, Any]], also: Mapping[str, str], ours: Mapping[str, Any], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    layout = PassageLayout.of(ours["passages"])
    units = utf16_offsets(layout.text)
    highlighted = []
    for row in rows:
        value, region = as_object(get_field(row, "value"), "value"), str(row.get("id"))
        label = _label(value, region)
        start, end = (units.get(value.get(key, -1)) for key in ("start", "end"))
        if start is None or end is None:
            raise DataError("is no place in the passages", field=f"region {region}")
        further = evidence_places(also.get(region, ""), f"region {region}")
        highlighted.append(Highlight(names.get(label, label), start, end, f"region {region}", further))
    return missing_rows(highlighted, layout)


def _chosen(rows: Sequence[Mapping[str, Any]]) -> str | None:
    choices = [c for row in rows for c in as_object(get_field(row, "value"), "value").get("choices", [])]
    return str(choices[0]) if choices else None
