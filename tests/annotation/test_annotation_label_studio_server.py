"""A real Label Studio on this machine, driven through its API: create, import, annotate as a second user, export, read.

Needs the program `label-studio` (on the path, or named by LABEL_STUDIO); it lives in an environment of its own.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotation_toy import ANSWER, OTHER, item, project, span
from servers import free_port, program_named, serving

from finegrained_rlhf.annotation.reading import ReadAnnotations
from finegrained_rlhf.annotation.tools import tool_named
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.feedback.labels import Suggestion

TOKEN = "0123456789abcdef0123456789abcdef01234567"
QUIET = {
    "COLLECT_ANALYTICS": "0",
    "SENTRY_DSN": "",
    "FRONTEND_SENTRY_DSN": "",
    "LATEST_VERSION_CHECK": "0",
    "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
    "LABEL_STUDIO_DISABLE_SIGNUP_WITHOUT_LINK": "true",
}
"""As docs/annotation.md starts it: nothing is sent anywhere, tokens work, nobody signs up."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program, port = program_named("LABEL_STUDIO", "label-studio"), free_port()
    folder = tmp_path_factory.mktemp("label_studio")
    account = ["--username", "ann@example.com", "--password", "secret-1", "--user-token", TOKEN]
    where = ["start", "--no-browser", "--port", str(port), "--internal-host", "127.0.0.1"]
    environment = {**os.environ, **QUIET, "LABEL_STUDIO_BASE_DATA_DIR": str(folder / "data")}
    address = f"http://127.0.0.1:{port}"
    with serving([program, *where, *account], folder, lambda: call(address, "GET", "/api/projects"), 240, environment):
        yield address


def call(address: str, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Token {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(address + path, method=method, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "null")


def units(text: str, place: int) -> int:
    return len(text[:place].encode("utf-16-le")) // 2


def region(name: str, to: str, kind: str, identifier: str, **value: Any) -> dict[str, Any]:
    return {"id": identifier, "from_name": name, "to_name": to, "type": kind, "value": value}


def work(data: dict[str, Any]) -> list[dict[str, Any]]:
    """What the second user does with a task."""
    done = [region("correction", "answer", "textarea", "c", text=[OTHER if data["item"] == "q1" else data["answer"]])]
    done += [region(f"place_{n}", f"shown_{n}", "choices", f"p{n}", choices=[str(n)]) for n in (1, 2)]
    if data["item"] == "q2":
        return [*done, *(region(n, "answer", "choices", n, choices=["x"]) for n in ("no_error", "nothing_missing"))]
    for number, (piece, label) in enumerate((("👩‍👩‍👧 swim", "Irrelevant"), ("هي دافئة", "Unverifiable fact"))):
        mark = span(ANSWER, piece, label)
        start, end = units(ANSWER, mark["start"]), units(ANSWER, mark["end"])
        done.append(
            region("errors", "answer", "labels", f"r{number}", start=start, end=end, text=piece, labels=[label])
        )
    text = data["passages"]
    start = text.index("Its water")
    place = {"start": units(text, start), "end": units(text, start + 9), "text": "Its water"}
    return [*done, region("missing", "passages", "labels", "m", **place, labels=["Missing-Answer"])]


def test_a_project_from_tasks_to_annotations(server: str, tmp_path: Path) -> None:
    of = project((item("q1", suggestions=(Suggestion(4, 8, "Irrelevant", 0.7, "m@1"),)), item("q2")))
    of.write(tmp_path / "tasks")
    config, tasks = tool_named("label_studio").write_tasks(tmp_path, of.payload("ann"))
    given = {"title": "toy-ann", "label_config": config.read_text(encoding="utf-8")}
    made = call(server, "POST", "/api/projects", given)["id"]
    imported = call(server, "POST", f"/api/projects/{made}/import", read_json(tasks))
    assert (imported["task_count"], imported["prediction_count"]) == (2, 1)
    second = call(server, "POST", "/api/users", {"email": "ben@example.com", "username": "ben", "password": "secret-2"})
    for task in call(server, "GET", f"/api/tasks?project={made}&fields=all")["tasks"]:
        body = {"result": work(task["data"]), "lead_time": 20.0, "completed_by": second["id"]}
        assert call(server, "POST", f"/api/tasks/{task['id']}/annotations", body)["completed_by"] == second["id"]
    export = tmp_path / "export.json"
    write_json(export, call(server, "GET", f"/api/projects/{made}/export?exportType=JSON"))
    found = ReadAnnotations(
        {"ann": str(export)}, str(tmp_path / "tasks"), str(tmp_path / "a.jsonl"), tool="label_studio"
    ).run()
    one = next(annotation for annotation in found.annotations if annotation.item == "q1")
    assert {(ANSWER[e.start : e.end], e.error_type) for e in one.errors} == {
        ("👩‍👩‍👧 swim", "Irrelevant"),
        ("هي دافئة", "Unverifiable"),
    }
    assert one.missing[0].sentence_ids == (2,) and one.correction == OTHER and one.seconds == 20.0
    assert list(one.preferences) in ([1], [2]) and len(found.annotations) == 2
