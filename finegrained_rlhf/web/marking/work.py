"""Projects that are open for marking: who is given which items, and what people did, event by event."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sql
from pydantic import BaseModel, ConfigDict, Field

from finegrained_rlhf.annotation.items import AnnotationItem, item_row
from finegrained_rlhf.annotation.project import EXPORT_FORMAT, Assignment, Project, assign, id_in
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.web.marking.states import State, StateUpdate, exported_task, merged, state_of, steps_back
from finegrained_rlhf.web.marking.store import (
    Store,
    assignments,
    events,
    members,
    of_task,
    projects,
    put,
    states,
    text_of,
)

_LOG_READ = 400
"""Events of a task that steps back are made of."""


class Event(BaseModel):
    """One change of a task: which fields, what they were where it was made, and what they became there."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(min_length=8, max_length=80)]
    item: Annotated[str, Field(max_length=1000)]
    before: StateUpdate
    update: StateUpdate


class Work:
    """The open projects of a served directory.

    Args:
        store: where they are kept.
        directory: whose annotation projects can be opened, resolved.
    """

    def __init__(self, store: Store, directory: Path) -> None:
        self.store, self.directory = store, directory
        self._read = lru_cache(maxsize=8)(self._of_row)

    def found(self) -> dict[str, str]:
        """The annotation projects below the directory, by id, each with its path below it."""
        made: dict[str, str] = {}
        for folder, children, files in os.walk(self.directory):
            children[:] = sorted(name for name in children if not name.startswith("."))
            known = id_in(Path(folder)) if {"manifest.json", "items.jsonl"} <= set(files) else None
            if known is not None:
                made.setdefault(known, str(Path(folder).relative_to(self.directory)))
                children.clear()
        return made

    def opened(self) -> list[Mapping[str, Any]]:
        """The projects that are open: `id`, `path`, `rule`."""
        return self.store.rows(sql.select(projects.c.id, projects.c.path, projects.c.rule).order_by(projects.c.path))

    def open(self, key: str) -> None:
        """Open a project that lies below the directory; its tasks are kept as they are now.

        Raises:
            DataError: there is none with this id, or it cannot be read.
        """
        path = self.found().get(key)
        if path is None:
            raise DataError(f"there is no annotation project {key!r} below {self.directory.name}")
        project = Project.read(self.directory / path)
        items = text_of([item_row(item) for item in project.items.values()])
        manifest = (self.directory / path / "manifest.json").read_text("utf-8")
        with self.store.writing() as connection:
            if connection.execute(sql.select(projects.c.id).where(projects.c.id == key)).first():
                return
            row = {"id": key, "path": path, "manifest": manifest, "items": items, "rule": "majority"}
            put(connection, projects, row)
            for name, dealt in project.annotators.items():
                self._deal(connection, key, project, name, dealt)

    def _deal(
        self, connection: sql.Connection, key: str, project: Project, name: str, dealt: Sequence[Assignment]
    ) -> None:
        qualifies = any(item.role == "qualification" for item in project.items.values())
        put(connection, members, {"project": key, "annotator": name, "admitted": not qualifies})
        rows = [
            {
                **{"project": key, "annotator": name, "item": one.item, "place": place},
                **{"order": text_of(one.order), "alone": project.items[one.item].role == "single"},
            }
            for place, one in enumerate(dealt)
        ]
        put(connection, assignments, rows)

    def join(self, key: str, name: str) -> None:
        """Give somebody a place in a project: the qualification and overlap items, and a fair share of the single
        items that nobody has begun, taken from those who have most of them.

        Raises:
            DataError: the project is not open.
        """
        project = self.project(key)
        if name in project.annotators:
            return
        with self.store.writing() as connection:
            free = self._unbegun(connection, key)
            share = sum(map(len, free.values())) // (len(free) + 1)
            given: list[str] = []
            while len(given) < share:
                given.append(max(free.values(), key=len).pop())
            self._take(connection, key, given)
            mine = [item for item in project.items.values() if item.role != "single" or item.id in set(given)]
            self._deal(connection, key, project, name, assign(mine, [name], 0)[name])

    def release(self, key: str, name: str) -> int:
        """Deal the single items that somebody has not begun out to the others; how many.

        Raises:
            DataError: there is nobody else, or the project is not open.
        """
        project = self.project(key)
        others = [other for other in project.annotators if other != name]
        require(bool(others), "there is nobody else to give them to", "annotators")
        with self.store.writing() as connection:
            free = self._unbegun(connection, key).get(name, [])
            orders = {one.item: one.order for one in project.annotators.get(name, ())}
            self._take(connection, key, free)
            for turn, item in enumerate(free):
                other = others[turn % len(others)]
                place = len(project.items) + turn
                row = {"project": key, "annotator": other, "item": item, "place": place, "alone": True}
                put(connection, assignments, {**row, "order": text_of(orders[item])})
        return len(free)

    def unbegun(self, key: str) -> list[AnnotationItem]:
        """The items that one person has alone and has not begun. Raises DataError where the project is not open."""
        project = self.project(key)
        with self.store.writing() as connection:
            free = self._unbegun(connection, key)
        return [project.items[name] for names in free.values() for name in names]

    def put_in_order(self, key: str, order: Sequence[str], chosen: Mapping[str, str]) -> int:
        """Let everybody come to the items that he or she has alone and has not begun in this order; how many.

        They change places among themselves: everything else of a person's list stays where it is.

        Args:
            key: of the project.
            order: ids, the first ones first; those that were begun meanwhile are left out, others come last.
            chosen: what items are said to be chosen by from now on (`strategy`), by id.
        """
        rank = {item: place for place, item in enumerate(order)}
        with self.store.writing() as connection:
            free = self._unbegun(connection, key)
            for name, items in free.items():
                movable = sql.and_(of_task(assignments, key, name), assignments.c.item.in_(items))
                query = sql.select(assignments.c.place).where(movable).order_by(assignments.c.place)
                places = [row[0] for row in connection.execute(query)]
                wanted = sorted(items, key=lambda item: rank.get(item, len(rank)))
                for place, item in zip(places, wanted, strict=True):
                    moved = sql.update(assignments).where(of_task(assignments, key, name, item))
                    connection.execute(moved.values(place=place))
            left = {item for items in free.values() for item in items}
            kept = sql.select(projects.c["items"]).where(projects.c.id == key)
            rows = json.loads(connection.execute(kept).scalar_one())
            for row in rows:
                if row["id"] in left and row["id"] in chosen:
                    row.update(strategy=chosen[row["id"]], probability=1.0)
            connection.execute(sql.update(projects).where(projects.c.id == key).values(items=text_of(rows)))
        self._read.cache_clear()
        return len(left)

    def _unbegun(self, connection: sql.Connection, key: str) -> dict[str, list[str]]:
        """Single items without an event, by annotator."""
        begun = sql.select(states.c.item).where(states.c.project == key)
        query = sql.select(assignments.c.annotator, assignments.c.item).where(
            assignments.c.project == key, assignments.c.alone, assignments.c.item.not_in(begun)
        )
        free: dict[str, list[str]] = {row[0]: [] for row in self._names(connection, key)}
        for annotator, item in connection.execute(query.order_by(assignments.c.place)):
            free[annotator].append(item)
        return free

    @staticmethod
    def _names(connection: sql.Connection, key: str) -> Sequence[Any]:
        return connection.execute(sql.select(members.c.annotator).where(members.c.project == key)).all()

    @staticmethod
    def _take(connection: sql.Connection, key: str, items: Sequence[str]) -> None:
        taken = sql.delete(assignments).where(assignments.c.project == key, assignments.c.item.in_(items))
        connection.execute(taken)

    def admit(self, key: str, name: str) -> None:
        """Let somebody go on from the qualification items to the others."""
        with self.store.writing() as connection:
            connection.execute(sql.update(members).where(of_task(members, key, name)).values(admitted=True))

    def set_rule(self, key: str, rule: str) -> None:
        """Choose how several people's marks are made one."""
        with self.store.writing() as connection:
            connection.execute(sql.update(projects).where(projects.c.id == key).values(rule=rule))

    def row(self, key: str) -> Mapping[str, Any]:
        """Path and rule of an open project. Raises DataError where it is none."""
        row = self.store.one(sql.select(projects.c.path, projects.c.rule).where(projects.c.id == key))
        if row is None:
            raise DataError("there is no such project, or it is not open")
        return row

    def project(self, key: str) -> Project:
        """A project with who was given what, as it is now.

        Raises:
            DataError: it is not open.
        """
        self.row(key)
        dealt: dict[str, list[Assignment]] = {
            row["annotator"]: [] for row in self.store.rows(sql.select(members).where(members.c.project == key))
        }
        query = sql.select(assignments).where(assignments.c.project == key).order_by(assignments.c.place)
        for row in self.store.rows(query):
            dealt[row["annotator"]].append(Assignment(row["item"], tuple(json.loads(row["order"]))))
        return replace(self._read(key), annotators={name: tuple(rows) for name, rows in dealt.items()})

    def _of_row(self, key: str) -> Project:
        """The project as it was opened, read as its files are."""
        row = self.store.one(sql.select(projects).where(projects.c.id == key))
        assert row is not None
        with tempfile.TemporaryDirectory() as folder:
            write_text(Path(folder) / "manifest.json", row["manifest"])
            lines = "\n".join(json.dumps(item, ensure_ascii=True) for item in json.loads(row["items"]))
            write_text(Path(folder) / "items.jsonl", lines + "\n")
            return Project.read(folder)

    def admitted(self, key: str, name: str) -> bool:
        """Whether somebody may go on from the qualification items."""
        row = self.store.one(sql.select(members.c.admitted).where(of_task(members, key, name)))
        return row is not None and bool(row["admitted"])

    def payload(self, key: str, name: str) -> dict[str, Any]:
        """What the page of one annotator is given. Suggestions stand on single items alone, whatever the files say.

        Raises:
            DataError: the project is not open, or the person has no place in it.
        """
        project = self.project(key)
        require(name in project.annotators, f"{name!r} has no place in this project", "annotator")
        made = project.payload(name)
        first_alone = not self.admitted(key, name)
        made["tasks"] = [
            {**task, "suggestions": task["suggestions"] if project.items[task["item"]].role == "single" else []}
            for task in made["tasks"]
            if not first_alone or project.items[task["item"]].role == "qualification"
        ]
        return made

    def kept(self, key: str, name: str) -> dict[str, dict[str, Any]]:
        """What somebody did: of each task that was begun its `version`, `state`, when (`at`) and steps `past`."""
        log: dict[str, list[dict[str, Any]]] = defaultdict(list)
        last = sql.func.row_number().over(partition_by=events.c.item, order_by=events.c.seq.desc()).label("back")
        query = sql.select(events, last).where(of_task(events, key, name)).subquery()
        for row in self.store.rows(sql.select(query).where(query.c.back <= _LOG_READ).order_by(query.c.seq)):
            change = {part: json.loads(row[part]) for part in ("update", "before")}
            log[row["item"]].append({"at": row["at"], **change})
        return {
            row["item"]: {
                **{"version": row["version"], "at": row["at"], "state": json.loads(row["state"])},
                "past": steps_back(log[row["item"]]),
            }
            for row in self.store.rows(sql.select(states).where(of_task(states, key, name)))
        }

    def states(self, key: str) -> dict[str, dict[str, tuple[State, float]]]:
        """Everybody's states and when they last changed, by annotator and item: not for pages of others."""
        made: dict[str, dict[str, tuple[State, float]]] = defaultdict(dict)
        for row in self.store.rows(sql.select(states).where(states.c.project == key)):
            made[row["annotator"]][row["item"]] = (json.loads(row["state"]), row["at"])
        return made

    def version(self, key: str) -> tuple[Any, ...]:
        """Changes with everything that figures depend on."""
        query: Any = sql.select(sql.func.count(), sql.func.max(events.c.seq)).where(events.c.project == key)
        given: Any = sql.select(sql.func.count()).where(assignments.c.project == key)
        return tuple(v for rows in (self.store.rows(query), self.store.rows(given)) for r in rows for v in r.values())

    def add(self, key: str, name: str, made: Sequence[Event]) -> dict[str, dict[str, Any]]:
        """Take changes, each once however often it is sent; all of them or none.

        Returns:
            Version and state of each task that they are of.

        Raises:
            DataError: a task is not this person's; nothing was taken.
        """
        answer: dict[str, dict[str, Any]] = {}
        with self.store.writing() as connection:
            dealt = sql.select(assignments.c.item).where(of_task(assignments, key, name))
            mine = {row[0] for row in connection.execute(dealt)}
            for event in made:
                require(event.item in mine, f"task {event.item!r} is not yours any more", "item")
                known = connection.execute(sql.select(events.c.seq).where(events.c.id == event.id)).first()
                if known is None or event.item not in answer:
                    answer[event.item] = self._current(connection, key, name, event.item)
                if known is None:
                    self._add(connection, key, name, event, answer[event.item])
        return answer

    @staticmethod
    def _current(connection: sql.Connection, key: str, name: str, item: str) -> dict[str, Any]:
        row = connection.execute(sql.select(states).where(of_task(states, key, name, item))).mappings().first()
        if row is None:
            return {"version": 0, "state": {}}
        return {"version": row["version"], "state": json.loads(row["state"])}

    @staticmethod
    def _add(connection: sql.Connection, key: str, name: str, event: Event, current: dict[str, Any]) -> None:
        now = current["state"]
        update, before = (one.model_dump(exclude_unset=True) for one in (event.update, event.before))
        state = merged(now, before, update)
        was = {field: now.get(field, before.get(field)) for field in update}
        task = {"project": key, "annotator": name, "item": event.item, "at": time.time()}
        changes = {"update": text_of({field: state[field] for field in update}), "before": text_of(was)}
        connection.execute(sql.insert(events).values(id=event.id, **task, **changes))
        current.update(version=current["version"] + 1, state=state)
        put(connection, states, {**task, "version": current["version"], "state": text_of(state)})

    def export(self, key: str, name: str, drafts: bool) -> dict[str, Any]:
        """What somebody did as the page saves it to a file, key for key.

        Args:
            key: of the project.
            name: of the annotator.
            drafts: whether what is not finished is in it: for nobody but that person.
        """
        project, kept = self.project(key), self.states(key).get(name, {})
        payload = project.payload(name)
        begun = [task for task in payload["tasks"] if task["item"] in kept]
        rows = [exported_task(task, kept[task["item"]][0], payload["taxonomy"]) for task in begun]
        return {
            "format": EXPORT_FORMAT,
            "project": project.name,
            "annotator": name,
            "guideline_version": project.guideline_version,
            "taxonomy": project.taxonomy.name,
            "tasks": [row for row in rows if row["status"] != "new" and (drafts or row["status"] != "draft")],
        }

    def take_in(self, key: str, export: Any) -> tuple[str, int]:
        """Take a file that somebody saved, as changes of theirs; whose, and how many tasks.

        Raises:
            DataError: it is no export of this project, or a task has another text here; nothing was taken.
        """
        project, document = self.project(key), as_object(export, "(export)")
        name = str(get_field(document, "annotator"))
        right = {"format": EXPORT_FORMAT, "project": project.name, "guideline_version": project.guideline_version}
        for field, value in right.items():
            require(document.get(field) == value, f"expected {value!r}, got {document.get(field)!r}", field)
        require(name in project.annotators, f"project {project.name} has no annotator {name!r}", "annotator")
        tasks = {task["item"]: task for task in project.payload(name)["tasks"]}
        now: dict[str, Any] = self.states(key).get(name, {})
        made: list[Event] = []
        for place, row in enumerate(as_list(get_field(document, "tasks"), "tasks")):
            item = str(as_object(row, f"tasks[{place}]").get("item"))
            require(item in tasks, "is not among this annotator's tasks", f"tasks[{place}]: item")
            update = StateUpdate.model_validate(state_of(row, tasks[item]))
            before = StateUpdate.model_validate(now[item][0] if item in now else {})
            made.append(Event(id=f"import-{time.time_ns():x}-{place}", item=item, before=before, update=update))
        self.add(key, name, made)
        return name, len(made)
