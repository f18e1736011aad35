"""Routes of the section "Marking": coming in, projects, the page on which people mark, and what reviewers decide.

Every write brings its session's secret along. Whoever may not see a page is told that it is not there.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from finegrained_rlhf.annotation.measure_agreement import disagreements
from finegrained_rlhf.annotation.tools import page_title
from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.web.marking import choosing, figures, outcome
from finegrained_rlhf.web.marking.accounts import ROLES, SESSION_S, Accounts, Person, SlowDownError
from finegrained_rlhf.web.marking.store import Store
from finegrained_rlhf.web.marking.work import Event, Work
from finegrained_rlhf.web.page import Section, address, render

COOKIE = "finegrained_session"
router = APIRouter()


@dataclass
class Marking:
    """What the routes of one application share.

    Attributes:
        accounts: who may come in.
        work: projects, and what people did.
        trainings: that were started here.
        saves: seconds that the last saves took in the server, from the request's arrival to its flushed transaction.
        kept: figures of each project, with the version that they are of.
    """

    accounts: Accounts
    work: Work
    trainings: outcome.Trainings
    saves: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    kept: dict[str, tuple[Any, figures.Measured]] = field(default_factory=dict)

    def measured(self, key: str) -> figures.Measured:
        """A project's figures, measured anew where something was done since."""
        version = self.work.version(key)
        if key not in self.kept or self.kept[key][0] != version:
            self.kept[key] = (version, figures.measured(self.work, key, self.work.project(key)))
        return self.kept[key][1]

    def first_link(self, needed: bool = False) -> str | None:
        """Where the first owner's account is made; None where there is an owner.

        Args:
            needed: nobody sees anything without an account; else None too where there is nothing to mark.
        """
        if self.accounts.has_owner() or not (needed or self.accounts.store.there or self.work.found()):
            return None
        return f"marking/join/{self.accounts.first}"

    def p95(self) -> float | None:
        """Milliseconds within which 95% of the last saves were done."""
        return 1000 * sorted(self.saves)[int(0.95 * (len(self.saves) - 1))] if self.saves else None


def _begin(app: FastAPI) -> None:
    directory = app.state.settings.directory
    store = Store(directory)
    app.state.marking = Marking(Accounts(store), Work(store, directory), outcome.Trainings(directory))


SECTION = Section("Marking", "/marking", router, _begin)


def marking_of(request: Request) -> Marking:
    """What the routes share."""
    made: Marking = request.app.state.marking
    return made


def person_of(request: Request) -> Person | None:
    """Who asks, where somebody is signed in."""
    return marking_of(request).accounts.person(request.cookies.get(COOKIE))


def insiders_only(request: Request) -> None:
    """A dependency of the other sections: where other machines reach the server and there are accounts, runs and the
    playground are for reviewers and owners; a server with TLS of its own shows them to nobody else at all.
    """
    settings, accounts = request.app.state.settings, marking_of(request).accounts
    if settings.tls or (settings.reachable and accounts.store.there):
        _need(request, "reviewer")


def _need(request: Request, role: str) -> Person:
    person = person_of(request)
    if person is None:
        if request.method != "GET":
            raise HTTPException(401, "You are signed out: sign in again, your work is kept.")
        where = quote(request.url.path)
        raise HTTPException(303, "Sign in first.", {"Location": f"/marking/sign-in?next={where}"})
    if not person.may(role):
        raise HTTPException(404, "There is no such page.")
    return person


def _annotator(request: Request) -> Person:
    return _need(request, "annotator")


def _reviewer(request: Request) -> Person:
    return _need(request, "reviewer")


def _owner(request: Request) -> Person:
    return _need(request, "owner")


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, each once; none where something else was sent."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    try:
        return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=5000))
    except ValueError:
        raise HTTPException(400, "This is no form.") from None


Fields = Annotated[dict[str, str], Depends(_form)]


def _written(request: Request, form: Fields) -> None:
    """Refuse a write that does not bring its session's secret along, in a field or a header."""
    person = person_of(request)
    brought = request.headers.get("x-csrf-token") or form.get("csrf", "")
    if person is not None and brought.encode() != person.csrf.encode():
        raise HTTPException(403, "This was not sent by a page of your session: load the page anew.")


Annotator = Annotated[Person, Depends(_annotator)]
Reviewer = Annotated[Person, Depends(_reviewer)]
Owner = Annotated[Person, Depends(_owner)]
WRITES = [Depends(_written)]


def _to(path: str, **query: Any) -> RedirectResponse:
    return RedirectResponse(address(path, **query), 303)


def _signed_in(request: Request, token: str, path: str) -> Response:
    answer = _to(path)
    secure = request.app.state.settings.reachable
    answer.set_cookie(COOKIE, token, max_age=SESSION_S, secure=secure, httponly=True, samesite="lax")
    return answer


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


@router.get("/marking")
def overview(request: Request) -> Response:
    """The projects that somebody works on, or looks after."""
    made, person = marking_of(request), person_of(request)
    if person is None and not made.accounts.has_owner():
        return render(request, "marking/first.html")
    person = _need(request, "annotator")
    rows, opened = [], made.work.opened()
    for row in opened:
        project = made.work.project(row["id"])
        mine = project.annotators.get(person.name)
        if mine is None and not person.may("reviewer"):
            continue
        done = {
            who: sum(state.get("status") in ("done", "skipped") for state, _ in items.values())
            for who, items in made.work.states(row["id"]).items()
        }
        counts = [(done.get(who, 0), len(dealt), who) for who, dealt in project.annotators.items()]
        own = None if mine is None else (done.get(person.name, 0), len(mine))
        total = (sum(count for count, _, _ in counts), sum(all_ for _, all_, _ in counts))
        rows.append({"row": row, "name": project.name, "own": own, "total": total})
    closed = {}
    if person.may("owner"):
        closed = {key: path for key, path in made.work.found().items() if key not in {row["id"] for row in opened}}
    return render(request, "marking/projects.html", person=person, rows=rows, closed=closed)


@router.get("/marking/sign-in")
def sign_in_page(request: Request, next: str = "/marking", problem: str = "") -> HTMLResponse:
    """Name and password."""
    return render(request, "marking/sign_in.html", next=_within(next), problem=problem, person=None)


def _within(path: str) -> str:
    """A path of this application; anything else is the first page."""
    return path if path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() else "/marking"


@router.post("/marking/sign-in")
def sign_in(request: Request, form: Fields) -> Response:
    """Begin a session. Wrong passwords are answered slower and slower."""
    name, path = form.get("name", ""), _within(form.get("next", ""))
    try:
        token = marking_of(request).accounts.sign_in(name, form.get("password", ""), _address(request))
    except SlowDownError as error:
        raise HTTPException(429, str(error), {"Retry-After": str(error.seconds)}) from None
    if token is None:
        problem = "Name and password do not belong together."
        return render(request, "marking/sign_in.html", status=401, next=path, problem=problem, person=None)
    return _signed_in(request, token, path)


@router.post("/marking/sign-out", dependencies=WRITES)
def sign_out(request: Request, person: Annotator) -> Response:
    """End the session, and have the browser forget what it keeps of this application."""
    marking_of(request).accounts.sign_out(request.cookies.get(COOKIE, ""))
    answer = _to("/marking/sign-in")
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/marking/join/{token}")
def join_page(request: Request, token: str) -> HTMLResponse:
    """Choose a password."""
    invited = marking_of(request).accounts.invited(token)
    if invited is None:
        raise HTTPException(404, "This invitation is used or has expired: ask for a new one.")
    return render(request, "marking/join.html", token=token, name=invited[0], role=invited[1], person=None, problem="")


@router.post("/marking/join/{token}")
def join(request: Request, token: str, form: Fields) -> Response:
    """Make the account that an invitation is for."""
    accounts = marking_of(request).accounts
    invited = accounts.invited(token)
    try:
        session = accounts.join(token, form.get("name", ""), form.get("password", ""))
    except ConfigError as error:
        if invited is None:
            raise HTTPException(404, str(error)) from None
        given = {"token": token, "name": invited[0], "role": invited[1], "person": None, "problem": str(error)}
        return render(request, "marking/join.html", status=422, **given)
    return _signed_in(request, session, "/marking")


@router.get("/marking/people")
def people(request: Request, person: Owner) -> HTMLResponse:
    """Accounts and invitations."""
    return _people(request, person)


def _people(request: Request, person: Person, link: str = "", to: str = "") -> HTMLResponse:
    made = marking_of(request)
    names = {name for row in made.work.opened() for name in made.work.project(row["id"]).annotators}
    known = made.accounts.people()
    given: dict[str, Any] = {
        "people": known,
        "absent": sorted(names - {str(row["name"]) for row in known}),
        "roles": ROLES,
    }
    return render(request, "marking/people.html", person=person, link=link, to=to, **given)


@router.post("/marking/people", dependencies=WRITES)
def change_people(request: Request, person: Owner, form: Fields) -> Response:
    """Invite somebody, or shut an account out."""
    made, name = marking_of(request), form.get("name", "")
    if "active" in form:
        made.accounts.set_active(name, form["active"] == "true")
        return _to("/marking/people")
    token = made.accounts.invite(name, form.get("role", "annotator"))
    return _people(request, person, f"{request.url.scheme}://{request.headers['host']}/marking/join/{token}", name)


@router.post("/marking/open", dependencies=WRITES)
def open_project(request: Request, person: Owner, form: Fields) -> Response:
    """Open an annotation project of the directory."""
    marking_of(request).work.open(form.get("project", ""))
    return _to(f"/marking/p/{quote(form.get('project', ''))}")


@router.get("/marking/p/{key}/work")
def work_page(request: Request, person: Annotator, key: str) -> HTMLResponse:
    """The page on which one person marks, with what he or she did so far."""
    made = marking_of(request)
    payload = _payload(made, key, person)
    if not payload["tasks"]:
        raise HTTPException(404, "You have no tasks in this project.")
    kept = made.work.kept(key, person.name)
    base = f"/marking/p/{quote(key)}"
    server = {"url": f"{base}/events", "token": "/marking/token", "csrf": person.csrf, "home": "/marking", "kept": kept}
    tasks = json.dumps({**payload, "server": server}, ensure_ascii=True)
    return render(request, "marking/work.html", tasks=tasks, title=page_title(payload), person=person)


def _payload(made: Marking, key: str, person: Person) -> dict[str, Any]:
    if person.name not in made.work.project(key).annotators:
        raise HTTPException(404, "You have no place in this project.")
    return made.work.payload(key, person.name)


@router.get("/marking/token")
def token(request: Request) -> JSONResponse:
    """Who is signed in, and the session's secret, for a page that was open while its session ended."""
    person = person_of(request)
    return JSONResponse({} if person is None else {"name": person.name, "csrf": person.csrf})


class Changes(BaseModel):
    """What a page sends: changes in their order."""

    model_config = ConfigDict(extra="forbid")
    annotator: str
    events: Annotated[list[Event], Field(max_length=500)]


async def _arrived() -> float:
    return time.perf_counter()


@router.post("/marking/p/{key}/events", dependencies=WRITES)
def save(
    request: Request, person: Annotator, key: str, changes: Changes, arrived: Annotated[float, Depends(_arrived)]
) -> JSONResponse:
    """Keep changes; answered when they are on the disk."""
    made = marking_of(request)
    if changes.annotator != person.name:
        raise HTTPException(401, f"These are tasks of {changes.annotator}, and {person.name} is signed in.")
    tasks = made.work.add(key, person.name, changes.events)
    made.saves.append(time.perf_counter() - arrived)
    return JSONResponse({"tasks": tasks})


@router.get("/marking/p/{key}/export.json")
def export(request: Request, person: Annotator, key: str, annotator: str = "") -> Response:
    """One person's file, as the page saves it. Nobody but that person is given what is not finished."""
    made, name = marking_of(request), annotator or person.name
    if (name != person.name and not person.may("reviewer")) or name not in made.work.project(key).annotators:
        raise HTTPException(404, "There is no such page.")
    text = json.dumps(made.work.export(key, name, drafts=name == person.name), ensure_ascii=True, indent=1)
    return PlainTextResponse(text, media_type="application/json")


@router.get("/marking/p/{key}")
def project_page(request: Request, person: Reviewer, key: str, said: str = "") -> HTMLResponse:
    """Progress, agreement, alarms, what people disagree about, and what is made of it."""
    made = marking_of(request)
    project, row, now = made.work.project(key), made.work.row(key), made.measured(key)
    given = made.work.states(key)
    progress = [
        {
            "name": name,
            "tasks": len(dealt),
            "done": sum(state.get("status") in ("done", "skipped") for state, _ in given.get(name, {}).values()),
            "admitted": made.work.admitted(key, name),
        }
        for name, dealt in project.annotators.items()
    ]
    decided = figures.decided(made.work, key)
    several = [one for one in figures.shared(now.judged) if one.item.role != "qualification"]
    queue: list[dict[str, Any]] = [
        {"item": one.item, "units": disagreements(one), "decided": decided.get(one.item.id)} for one in several
    ]
    queue.sort(key=lambda one: (one["decided"] is not None, -one["units"], one["item"].id))
    known = [str(one["name"]) for one in made.accounts.people() if one["active"]]
    values: dict[str, Any] = dict(
        **{"person": person, "key": key, "row": row, "project": project, "now": now, "said": said, "queue": queue},
        **{"people": figures.people(now, project), "progress": progress, "rules": figures.densities(now, project)},
        **{"kinds": outcome.kinds(project), "models": made.trainings.models()},
        **{"selections": choosing.RULES, "judges": choosing.trained_models(made.work.directory)},
        **{"marked": outcome.exists(made.work, key), "saves": len(made.saves)},
        **{"trainings": [one for one in made.trainings.made if one.project == key], "p95": made.p95()},
        **{"version": _version(made, key), "others": sorted(set(known) - set(project.annotators))},
    )
    return render(request, "marking/project.html", **values)


@router.get("/marking/p/{key}/live")
def live(request: Request, person: Reviewer, key: str) -> JSONResponse:
    """Whether anything was done since."""
    made = marking_of(request)
    running = any(one.status is None for one in made.trainings.made)
    return JSONResponse({"version": _version(made, key), "running": running})


def _version(made: Marking, key: str) -> str:
    """Another one whenever the project's page shows something else."""
    trainings = [one.status for one in made.trainings.made if one.project == key]
    return json.dumps([made.work.version(key), trainings])


@router.get("/marking/p/{key}/types.css")
def types_style(request: Request, person: Reviewer, key: str) -> Response:
    """The colours of a project's types."""
    taxonomy = marking_of(request).work.project(key).taxonomy
    kinds = [*taxonomy.error_types.values(), *taxonomy.missing.values()]
    rules = [f".t{place} {{ --mark: {kind.colour}; }}" for place, kind in enumerate(kinds)]
    return PlainTextResponse("\n".join(rules), media_type="text/css")


@router.post("/marking/p/{key}", dependencies=WRITES)
def change_project(request: Request, person: Owner, key: str, form: Fields) -> Response:
    """Choose the rule, let people in or on, write the files, or train on them."""
    made, action, name = marking_of(request), form.get("action", ""), form.get("name", "")
    here = f"/marking/p/{quote(key)}"
    made.work.row(key)
    if action == "rule":
        require(form.get("rule") in figures.RULES, f"expected one of {', '.join(figures.RULES)}", "rule")
        made.work.set_rule(key, form["rule"])
        return _to(here, said=f"Several people's marks are made one by {form['rule']} now.")
    if action == "join":
        require(name in [one["name"] for one in made.accounts.people()], f"there is no account {name!r}", "name")
        made.work.join(key, name)
        return _to(here, said=f"{name} has tasks now.")
    if action == "release":
        return _to(here, said=f"{made.work.release(key, name)} tasks of {name} were dealt out to others.")
    if action == "admit":
        made.work.admit(key, name)
        return _to(here, said=f"{name} goes on to the other tasks.")
    if action == "write":
        return _to(here, said=f"Written to {outcome.write(made.work, key).relative_to(made.work.directory)}.")
    if action == "select":
        models = [field.removeprefix("model ") for field in form if field.startswith("model ")]
        count = choosing.choose_next(made.work, key, form.get("select", ""), models)
        return _to(here, said=f"{count} items that nobody has begun are ordered by {form['select']} now.")
    require(action == "train", f"there is no action {action!r}", "action")
    given = outcome.numbers_of(form)
    kind, model, run = (form.get(field, "") for field in ("kind", "model", "run"))
    made.trainings.start(made.work, key, kind, model, run, given)
    return _to(here, said=f"Training {run}: it appears among the runs when it begins.")


@router.post("/marking/p/{key}/import", dependencies=WRITES)
def take_in(request: Request, person: Owner, key: str, form: Fields) -> Response:
    """Take a file that somebody saved on the offline page."""
    try:
        document = json.loads(form.get("export", ""))
    except (ValueError, RecursionError):
        raise ConfigError("This is no JSON: paste the whole file that was saved.") from None
    name, count = marking_of(request).work.take_in(key, document)
    return _to(f"/marking/p/{quote(key)}", said=f"{count} tasks of {name} were read.")


def _judged(made: Marking, key: str, item: str) -> Any:
    for one in figures.shared(made.measured(key).judged):
        if one.item.id == item and one.item.role != "qualification":
            return one
    raise HTTPException(404, "No two people have finished this item.")


@router.get("/marking/p/{key}/review")
def review_page(request: Request, person: Reviewer, key: str, item: str) -> HTMLResponse:
    """An item's marks side by side, each to be kept or dropped, with a reason."""
    made = marking_of(request)
    one, project, rule = _judged(made, key, item), made.work.project(key), made.work.row(key)["rule"]
    said = figures.decided(made.work, key).get(item)
    by_rule = figures.record_of(one, project, rule, made.measured(key).believed, None)
    proposed = None if one.item.marked is None else by_rule.marked[one.item.marked]
    kinds = [*project.taxonomy.error_types.values(), *project.taxonomy.missing.values()]
    values: dict[str, Any] = dict(
        **{"person": person, "key": key, "one": one, "said": said, "rule": rule, "marks": figures.marks_of(one)},
        **{"kinds": {kind.name: (place, kind) for place, kind in enumerate(kinds)}, "proposed": proposed},
        **{"text": "" if one.item.marked is None else one.item.answers[one.item.marked]},
    )
    return render(request, "marking/review.html", **values)


@router.post("/marking/p/{key}/review", dependencies=WRITES)
def review(request: Request, person: Reviewer, key: str, item: str, form: Fields) -> Response:
    """Keep a decision, and go to the next disagreement."""
    made = marking_of(request)
    one = _judged(made, key, item)
    seen = json.loads(form.get("seen", "[]")) if form.get("seen", "").startswith("[") else []
    marks = {
        name: {"stays": form.get(f"stays {name}") == "yes", "reason": form.get(f"reason {name}", "").strip()[:10_000]}
        for name in seen
        if form.get(f"stays {name}") in ("yes", "no")
    }
    given = {"marks": marks, "correction": form.get("correction", next(iter(one.annotations))), "seen": seen}
    try:
        figures.decide(made.work, key, one, person.name, given)
    except FineGrainedError as error:
        raise HTTPException(409, str(error)) from None
    decided = figures.decided(made.work, key)
    left = [other for other in figures.shared(made.measured(key).judged) if other.item.id not in decided]
    left = sorted((o for o in left if o.item.role != "qualification"), key=lambda other: -disagreements(other))
    if left and disagreements(left[0]):
        return _to(f"/marking/p/{quote(key)}/review", item=left[0].item.id)
    return _to(f"/marking/p/{quote(key)}", said="Every disagreement is decided.")
