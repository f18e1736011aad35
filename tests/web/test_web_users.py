"""The page of one user's notes: seen, corrected and forgotten by this user, and never another's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.personalization import MemoryTools, UserMemory
from finegrained_rlhf.personalization.store.protocol import Note, NoteChange
from finegrained_rlhf.personalization.store.sql import SqlHandle
from finegrained_rlhf.web.application import Settings, create_app
from finegrained_rlhf.web.serve import Serve

HERE = "http://localhost:8700"


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A memory in which ada and ben have a note each."""
    memory = UserMemory(str(tmp_path / "users.db"), durable=False)
    for name in ("ada", "ben"):
        memory.set_consent(name, store=True, train=False)
        MemoryTools(memory, name).record(f"CANARY of {name} <script>x</script>")
    memory.close()
    return str(tmp_path / "users.db")


def client(tmp_path: Path, **settings: str) -> TestClient:
    return TestClient(create_app(Settings(tmp_path, **settings)), base_url=HERE, raise_server_exceptions=False)  # type: ignore[arg-type]


def key_of(page: str) -> str:
    return page.split('name="note" value="')[1].split('"')[0]


def test_a_person_sees_corrects_and_forgets(tmp_path: Path, file: str) -> None:
    asked = client(tmp_path, memory=file, user="ada")
    page = asked.get("/notes")
    assert "CANARY of ada &lt;script&gt;" in page.text and "<script>x" not in page.text and "of ben" not in page.text
    assert 'aria-current="page">My notes</a>' in page.text and "unsafe" not in page.headers["content-security-policy"]
    form = {"note": key_of(page.text), "version": "1", "action": "correct", "field.text": "I am Ada."}
    assert "I am Ada." in asked.post("/notes/decide", data=form).text
    again = asked.post("/notes/decide", data=form)
    assert again.status_code == 409 and "has changed meanwhile" in again.text
    form |= {"version": "2", "action": "delete"}
    assert '<span class="pill">deleted</span>' in asked.post("/notes/decide", data=form).text
    assert asked.get("/notes/export").json()["user"] == "ada" and "of ben" not in asked.get("/notes/export").text
    assert asked.post("/notes/forget", data={"name": "ben"}).status_code == 422
    assert "There is no note." in asked.post("/notes/forget", data={"name": "ada"}).text
    everything = b"".join(one.read_bytes() for one in tmp_path.iterdir() if one.name.startswith("users.db"))
    assert b"of ada" not in everything and b"of ben" in everything


def test_nobody_reaches_another_users_note(tmp_path: Path, file: str) -> None:
    theirs = key_of(client(tmp_path, memory=file, user="ben").get("/notes").text)
    asked = client(tmp_path, memory=file, user="ada")
    for action, more in (("correct", {"field.text": "stolen"}), ("delete", {})):
        form = {"note": theirs, "version": "1", "action": action, "user": "ben", **more}
        assert asked.post("/notes/decide?user=ben", data=form).status_code == 422
    assert "of ben" not in asked.get("/notes?user=ben").text
    assert "CANARY of ben" in client(tmp_path, memory=file, user="ben").get("/notes").text


def test_a_note_that_is_learnt_while_the_page_is_made_breaks_nothing(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = SqlHandle.history
    learnt: list[str] = []

    def meanwhile(handle: SqlHandle, *values: object, **keys: object) -> list[Note]:
        if not learnt:  # by a worker, between one reading and the next
            learnt.append("n")
            handle.apply(handle.record("n", "edit", {}), [NoteChange("n", {"preference": "short"})])
        return history(handle)

    monkeypatch.setattr(SqlHandle, "history", meanwhile)
    asked = client(tmp_path, memory=file, user="ada")
    assert asked.get("/notes").status_code == 200 and learnt
    monkeypatch.setattr(SqlHandle, "evidence", lambda handle: {})  # forgotten, after the notes were read
    assert asked.get("/notes").status_code == 200


def test_a_browsers_line_ends_are_no_correction(tmp_path: Path, file: str) -> None:
    memory = UserMemory(file, durable=False)
    said = {"preference": "\none\ntwo", "other": "x\r\ny", "number": 3}
    handle = memory.user("ada")
    handle.apply(handle.record("n", "edit", {}), [NoteChange("n", said)])
    asked = client(tmp_path, memory=file, user="ada")
    assert ">\n\none\ntwo</textarea>" in asked.get("/notes").text  # HTML drops the first line end
    form = {
        "note": "n",
        "version": "1",
        "action": "correct",
        "field.preference": "\r\none\r\ntwo",
        "field.other": "x\r\ny",
    }
    assert asked.post("/notes/decide", data=form).status_code == 200 and handle.note("n").version == 1
    asked.post("/notes/decide", data={**form, "field.preference": "one\r\ntwo, short"})
    assert handle.note("n").body == {**said, "preference": "one\ntwo, short"} and handle.note("n").version == 2
    memory.close()


@pytest.mark.parametrize("version", ["\u00b2", "\u0664", "1" * 5000, ""])
def test_a_version_that_is_no_number_is_refused(version: str, tmp_path: Path, file: str) -> None:
    form = {"note": "n", "version": version, "action": "hold"}
    assert client(tmp_path, memory=file, user="ada").post("/notes/decide", data=form).status_code == 422


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_page_of_another_site_changes_nothing(tmp_path: Path, file: str, origin: str) -> None:
    asked = client(tmp_path, memory=file, user="ada")
    key = key_of(asked.get("/notes").text)
    for path, form in (
        ("/notes/forget", {"name": "ada"}),
        ("/notes/decide", {"note": key, "version": "1", "action": "delete"}),
    ):
        assert asked.post(path, data=form, headers={"Origin": origin}).status_code == 403
    assert "CANARY of ada" in asked.get("/notes").text
    assert asked.post("/notes/decide", data={"note": key, "version": "x", "action": "delete"}).status_code == 422
    assert asked.post("/notes/decide", data={"note": key, "version": "1", "action": "expire"}).status_code == 422


def test_behind_a_proxy_its_header_says_who_asks(tmp_path: Path, file: str) -> None:
    asked = client(tmp_path, memory=file, user_header="X-User")
    assert "of ada" in asked.get("/notes", headers={"X-User": "ada"}).text
    assert asked.get("/notes").status_code == 403
    twice = asked.get("/notes", headers=[("X-User", "ada"), ("X-User", "ben")])  # type: ignore[arg-type]
    assert twice.status_code == 403 and "CANARY" not in twice.text
    assert "zo\u00eb" in asked.get("/notes", headers={"X-User": "zo\u00eb".encode()}).text  # type: ignore[dict-item]


def test_without_a_memory_there_is_no_page_and_settings_that_cannot_be_are_refused(tmp_path: Path, file: str) -> None:
    assert client(tmp_path).get("/notes").status_code == 404 and "My notes" not in client(tmp_path).get("/runs").text
    for wrong in (
        {"memory": file},
        {"user": "ada"},
        {"memory": file, "user": "ada", "user_header": "X-User"},
        {"memory": file, "user_header": "X-User"},
    ):
        with pytest.raises(ConfigError, match="user"):
            Serve(str(tmp_path), **wrong)  # type: ignore[arg-type]
