"""What other tools export when a person does there what a finished task in the shared form says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.annotation.forms import PassageLayout, pair_choices
from finegrained_rlhf.annotation.potato import user_of
from finegrained_rlhf.feedback.records import pair_order


def units(text: str, place: int) -> int:
    return len(text[:place].encode("utf-16-le")) // 2


def highlights(task: Mapping[str, Any], done: Mapping[str, Any]) -> list[tuple[str, int, int, str]]:
    """Type, start and end of everything missing in the passages' layout, and the further sentences in words.

    Neighbouring sentences are highlighted at once; what lies elsewhere is named.
    """
    layout = PassageLayout.of(task["passages"])
    places = {(passage, sentence): (start, end) for start, end, passage, sentence in layout.places}
    found = []
    for gap in done["missing"]:
        passage, sentences = gap["passage"], gap["sentences"]
        run = [s for i, s in enumerate(sentences) if s == sentences[0] + i]
        also = ", ".join(f"{passage}.{s}" for s in sentences if s not in run)
        found.append((gap["type"], places[passage, run[0]][0], places[passage, run[-1]][1], also))
    return found


def choices_of(task: Mapping[str, Any], done: Mapping[str, Any]) -> dict[str, str]:
    """The choice in each control that compares answers."""
    answers = len(task["answers"])
    if done.get("preferences") is not None:
        rows = zip(pair_order(answers), done["preferences"], strict=True)
        said = {(i, j): next(k for k, v in pair_choices(i, j).items() if v == value) for (i, j), value in rows}
        return {f"pair_{i + 1}_{j + 1}": choice for (i, j), choice in said.items()}
    return {f"place_{i + 1}": str(n) for n, group in enumerate(done["ranking"] or [], start=1) for i in group}


def label_studio_export(payload: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The JSON export of a project, tasks as `tasks.json` has them."""
    labels = {kind["name"]: kind["label"] for c in payload["taxonomy"]["categories"] for kind in c["types"]}
    labels |= {kind["name"]: kind["label"] for kind in payload["taxonomy"]["missing"]}
    tasks = {task["item"]: task for task in payload["tasks"]}
    rows = []
    for number, one in enumerate(done):
        task = tasks[one["item"]]
        text = task["answers"][task["marked"]]
        passages = PassageLayout.of(task["passages"]).text
        result: list[dict[str, Any]] = []

        def region(name: str, to: str, kind: str, value: Any, identifier: str, into: list[Any] = result) -> None:
            into.append({"id": identifier, "from_name": name, "to_name": to, "type": kind, "value": value})

        for i, span in enumerate(one["spans"]):
            start, end = units(text, span["start"]), units(text, span["end"])
            value = {"start": start, "end": end, "text": span["text"], "labels": [labels[span["type"]]]}
            region("errors", "answer", "labels", value, f"r{i}")
            if span["note"]:
                region("note", "answer", "textarea", {"text": [span["note"]]}, f"r{i}")
            if span["evidence"]:
                told = ", ".join(f"{passage}.{sentence}" for passage, sentence in span["evidence"])
                region("evidence", "answer", "textarea", {"text": [told]}, f"r{i}")
        for i, (kind, start, end, also) in enumerate(highlights(task, one)):
            value = {"start": units(passages, start), "end": units(passages, end), "text": passages[start:end]}
            region("missing", "passages", "labels", {**value, "labels": [labels[kind]]}, f"m{i}")
            if also:
                region("also", "passages", "textarea", {"text": [also]}, f"m{i}")
        for name in ("no_error", "nothing_missing"):
            if one[name]:
                region(name, "answer", "choices", {"choices": ["x"]}, name)
        if one["correction"] is not None:
            region("correction", "answer", "textarea", {"text": [one["correction"]]}, "c")
        for name, choice in choices_of(task, one).items():
            region(name, f"shown_{name.split('_')[1]}", "choices", {"choices": [choice]}, name)
        made = {"id": number, "completed_by": 1, "was_cancelled": False, "lead_time": 3.0, "result": result}
        data = {"item": task["item"], "hash": task["hash"], "order": task["order"]}
        rows.append({"id": number, "data": data, "annotations": [made], "predictions": []})
    return rows


def potato_state(payload: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The `user_state.json` of an annotator."""
    tasks = {task["item"]: task for task in payload["tasks"]}
    labels, spans = {}, {}
    for one in done:
        task = tasks[one["item"]]
        name = f"{task['item']} {task['hash']}"
        marks = sorted(one["spans"], key=lambda span: (span["start"], span["end"]))
        text = task["answers"][task["marked"]]
        found = [
            mark("errors", span["type"], *seen(text, span["start"], span["end"]), "answer") for span in one["spans"]
        ]
        gaps = highlights(task, one)
        passages = PassageLayout.of(task["passages"]).text
        found += [mark("missing", kind, *seen(passages, a, b), "passages") for kind, a, b, _ in gaps]
        spans[name] = [[row, 1] for row in found]
        said = [value(key, key, key) for key in ("no_error", "nothing_missing") if one[key]]
        notes = [f"{i}: {span['note']}" for i, span in enumerate(marks, start=1) if span["note"]]
        for i, span in enumerate(marks, start=1):
            if span["evidence"]:
                notes.append(f"{i} evidence: {', '.join(f'{p}.{s}' for p, s in span['evidence'])}")
        from_left = sorted(gaps, key=lambda gap: gap[1:3])
        notes += [f"missing {i} also: {gap[3]}" for i, gap in enumerate(from_left, start=1) if gap[3]]
        if notes:
            said.append(value("notes", "text_box", "\n".join(notes)))
        if one["correction"] is not None:
            text = json.dumps({"edited_text": one["correction"].replace("\r\n", "\n"), "original_text": "…"})
            said.append(value("correction", "correction", text))
        said += [value(key, choice, choice) for key, choice in choices_of(task, one).items()]
        labels[name] = said
    user = user_of(payload["annotator"])
    work = {name: {"total_time_ms": 3000} for name in labels}
    return {
        "user_id": user,
        "instance_id_to_label_to_value": labels,
        "instance_id_to_span_to_value": spans,
        "instance_id_to_behavioral_data": work,
    }


def seen(text: str, start: int, end: int) -> tuple[int, int]:
    """Where a piece of a text, which begins and ends with a word, lies in what Potato shows of it."""
    before, whole = (
        " ".join(re.sub(r"\s*[\r\n]\s*", " ¶ ", text[:place].strip()).split()) for place in (start + 1, end)
    )
    return len(before) - 1, len(whole)


def mark(schema: str, name: str, start: int, end: int, field: str) -> dict[str, Any]:
    return {"schema": schema, "name": name, "title": name, "start": start, "end": end, "target_field": field}


def value(schema: str, name: str, said: str) -> list[Any]:
    return [{"schema": schema, "name": name}, said]
