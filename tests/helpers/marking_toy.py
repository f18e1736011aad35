"""A served directory with annotation tasks, people with accounts, and what they send: without a browser."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from annotation_toy import item, project
from starlette.testclient import TestClient

from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.web.application import Settings, create_app
from finegrained_rlhf.web.marking.accounts import COST

PASSWORD = "correct horse"
COST.update(n=16, p=1)  # what is slow on purpose is slow enough in the tests of a served process
_IDS = itertools.count()


def tasks_below(
    directory: Path,
    items: Sequence[AnnotationItem] = (item("q1", role="overlap"), item("q2"), item("q3")),
    people: Sequence[str] = ("ann", "ben"),
    taxonomy: Taxonomy = QA_FEEDBACK,
) -> Project:
    """Tasks in `directory/tasks`."""
    made = project(items, people, taxonomy)
    (directory / "tasks").mkdir(parents=True)
    made.write(directory / "tasks")
    return made


class Client(TestClient):
    """Somebody's browser."""

    def write(self, path: str, **fields: str) -> Any:
        return self.post(path, data={"csrf": self.secret, **fields})

    @property
    def secret(self) -> str:
        return str(self.get("/marking/token").json().get("csrf", ""))


class Office:
    """An application with one open project, its owner `olga`, a reviewer `rita`, and annotators."""

    def __init__(self, directory: Path, settings: dict[str, Any] | None = None, **tasks: Any) -> None:
        self.project = tasks_below(directory, **tasks)
        self.directory = directory.resolve()
        self.app = create_app(Settings(self.directory, **(settings or {})))
        self.marking = self.app.state.marking
        self.key = self.project.id
        self.base = "https://marks.example" if (settings or {}).get("reachable") else "http://localhost:8700"
        self.owner = self.visitor()
        self.owner.post("/" + self.marking.first_link(), data={"name": "olga", "password": PASSWORD})
        self.owner.write("/marking/open", project=self.key)
        people = {**dict.fromkeys(self.project.annotators, "annotator"), "rita": "reviewer"}
        self.people = {name: self.invited(name, role) for name, role in people.items()}

    def visitor(self, **options: Any) -> Client:
        headers = {"accept": "text/html", **options.pop("headers", {})}
        options = {"base_url": self.base, "raise_server_exceptions": False, **options}
        return Client(self.app, headers=headers, **options)

    def invited(self, name: str, role: str) -> Client:
        token = self.marking.accounts.invite(name, role)
        client = self.visitor()
        assert client.post(f"/marking/join/{token}", data={"password": PASSWORD}).url.path == "/marking"
        return client

    @property
    def here(self) -> str:
        return f"/marking/p/{self.key}"

    def send(self, name: str, *changes: dict[str, Any], **options: Any) -> Any:
        """Send changes as the page does; options take the place of what it would say."""
        client = options.pop("client", self.people[name])
        body = {"annotator": name, "events": list(changes), **options}
        return client.post(f"{self.here}/events", json=body, headers={"x-csrf-token": client.secret})

    def finish(self, name: str, item: str, spans: Sequence[tuple[int, int, str]] = (), seconds: float = 30.0) -> None:
        """Do a task of QA-FEEDBACK with these marks (in UTF-16 units)."""
        task = next(one for one in self.marking.work.payload(self.key, name)["tasks"] if one["item"] == item)
        update = {
            "spans": [{"start": a, "end": b, "type": kind, "evidence": [], "note": ""} for a, b, kind in spans],
            "noError": not spans,
            "nothingMissing": True,
            "places": [1] * len(task["answers"]),
            "status": "done",
            "seconds": seconds,
        }
        answer = self.send(name, change(item, update))
        assert answer.status_code == 200, answer.text


def change(item: str, update: dict[str, Any], before: dict[str, Any] | None = None, id: str = "") -> dict[str, Any]:
    return {"id": id or f"event-{next(_IDS):08d}", "item": item, "before": before or {}, "update": update}


def links(page: str) -> list[str]:
    return re.findall(r'(?:href|action)="([^"]*)"', page)
