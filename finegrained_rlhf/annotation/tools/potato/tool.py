"""Potato (2.12) as an annotation tool: one configuration and one server an annotator, merged on our item ids.

Potato stores offsets in characters and no words beside them. It counts wrongly where white space stands in runs and
where lines break, and takes out what looks like an HTML tag. So people are shown a text without any of these
(`ShownText`), from which places lead back to ours, and the id of a task carries the hash of its text: work on other
texts is not taken for work on ours. It has no box for each mark: what is said about marks stands in one box, a line a
mark, counted from left to right. It shows no suggestions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from finegrained_rlhf.annotation.project.project import EXPORT_FORMAT
from finegrained_rlhf.annotation.tools.potato.state import finished_task
from finegrained_rlhf.annotation.tools.potato.tasks import potato_config, potato_task, task_id, user_of
from finegrained_rlhf.core.checks import as_object, get_field, require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json, write_text


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
