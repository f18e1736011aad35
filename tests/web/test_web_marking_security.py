"""What marking refuses: a table of attacks, each with what happens."""

from __future__ import annotations

import json
import signal
import sqlite3
import ssl
import time
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

pytest.importorskip("sqlalchemy")

from annotation_toy import item
from certificates import needs_openssl, self_signed
from marking_toy import PASSWORD, Office, change
from script_runs import start_script

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.web.address import listening
from finegrained_rlhf.web.guard import BODY_BYTES
from finegrained_rlhf.web.marking.accounts import FREE
from finegrained_rlhf.web.serve import Serve

EVIL = "</div><script>window.pwned=1</script>\"'><img src=x onerror=pwned=1>{{7*7}}\u202e"


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    items = [item("q1", role="overlap"), item("q2", answers=(EVIL, "Fine."), question=EVIL), item("q3")]
    made = Office(tmp_path_factory.mktemp("office"), items=items)
    made.finish("ann", "q1", [(0, 19, "Irrelevant")])
    made.finish("ben", "q1")
    return made


PAGES = ("", "/live", "/review?item=q1", "/types.css", "/export.json", "/work")
WRITES = ("/events", "", "/review?item=q1", "/import")


@pytest.mark.parametrize("path", PAGES)
def test_nobody_sees_a_page_without_a_session(office: Office, path: str) -> None:
    answer = office.visitor(follow_redirects=False).get(office.here + path)
    assert answer.status_code == 303 and answer.headers["location"].startswith("/marking/sign-in?next=/marking/p/")


@pytest.mark.parametrize("path", WRITES)
def test_nobody_writes_without_a_session(office: Office, path: str) -> None:
    answer = office.visitor(follow_redirects=False).post(office.here + path, json={"annotator": "ann", "events": []})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        *[("ann", path, 404) for path in PAGES[:4]],
        ("ann", "/export.json?annotator=ben", 404),
        ("rita", "/export.json?annotator=ben", 200),
        ("rita", "/work", 404),  # no place in the project
        ("ann", "/../../people", 404),
    ],
)
def test_a_role_sees_its_pages_alone(office: Office, name: str, path: str, status: int) -> None:
    assert office.people[name].get(office.here + path).status_code == status


@pytest.mark.parametrize("action", ["rule", "join", "release", "admit", "write", "train"])
def test_only_an_owner_changes_a_project_or_lets_people_in(office: Office, action: str) -> None:
    for name in ("ann", "rita"):
        assert office.people[name].write(office.here, action=action, rule="union", name="ann").status_code == 404
        assert office.people[name].write("/marking/people", name="eve", role="owner").status_code == 404
    assert office.marking.work.row(office.key)["rule"] == "majority"


@pytest.mark.parametrize("secret", ["", "wrong", "é"])
@pytest.mark.parametrize("path", ["/marking/people", "/marking/open", "/marking/sign-out"])
def test_a_write_needs_the_secret_of_its_session(office: Office, path: str, secret: str) -> None:
    before = office.marking.accounts.people()
    assert office.owner.post(path, data={"csrf": secret, "name": "eve", "role": "owner"}).status_code == 403
    assert office.marking.accounts.people() == before and office.owner.get("/marking").status_code == 200


def test_a_page_of_another_site_writes_nothing(office: Office) -> None:
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        fields = {"csrf": office.owner.secret, "name": "eve", "role": "owner"}
        answer = office.owner.post("/marking/people", data=fields, headers={"origin": origin})
        assert answer.status_code == 403
    crossed = office.people["ben"].secret  # the secret of another session
    answer = office.people["ann"].post("/marking/sign-out", data={"csrf": crossed})
    assert answer.status_code == 403


def test_no_account_sees_or_changes_what_another_has_not_finished(office: Office) -> None:
    task = next(one["item"] for one in office.marking.work.payload(office.key, "ann")["tasks"] if one["item"] != "q1")
    office.send("ann", change(task, {"correction": "half a secr", "status": "draft"}))
    for client in (office.people["ben"], office.people["rita"], office.owner):
        for path in ("", "/live", "/work", "/review?item=q1", f"/review?item={task}", "/export.json?annotator=ann"):
            assert "half a secr" not in client.get(office.here + path).text
    assert "half a secr" in office.people["ann"].get(office.here + "/work").text
    assert "half a secr" in office.people["ann"].get(office.here + "/export.json").text
    other = office.send("ben", change(task, {"correction": "mine now"}))
    assert other.status_code == 422 and "not yours" in other.text
    as_ann = office.send("ann", change(task, {"correction": "mine now"}), client=office.people["ben"])
    assert as_ann.status_code == 401  # a page of ann's where ben has signed in since
    assert office.marking.work.states(office.key)["ann"][task][0]["correction"] == "half a secr"


class Elements(HTMLParser):
    """What a browser makes of a page: the elements, and texts that are none."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_hostile_texts_are_inert(office: Office) -> None:
    payloads = {name: office.marking.work.payload(office.key, name)["tasks"] for name in ("ann", "ben")}
    who = next(name for name, tasks in payloads.items() if any(task["item"] == "q2" for task in tasks))
    for page in (office.people[who].get(office.here + "/work"), office.owner.get(office.here)):
        assert page.status_code == 200 and "unsafe" not in page.headers["content-security-policy"]
        for tag, attributes in Elements(page.text).found:
            assert tag not in ("style", "iframe") and (tag != "script" or attributes["src"].startswith("/static/"))
            assert not any(name.startswith("on") or name == "style" for name in attributes)
            assert tag != "img" or attributes["src"] == "/static/icon.svg"
    told = office.owner.get("/marking/sign-in?problem=<b>&next=//evil.example")
    assert 'value="/marking"' in told.text and "<b>" not in told.text


@pytest.mark.parametrize(
    "next_", ["//evil.example", "/\\evil.example", "https://evil.example", "/\n/evil.example", "javascript:1"]
)
def test_signing_in_leads_nowhere_else(office: Office, next_: str) -> None:
    visitor = office.visitor(follow_redirects=False)
    answer = visitor.post("/marking/sign-in", data={"name": "rita", "password": PASSWORD, "next": next_})
    assert answer.status_code == 303 and answer.headers["location"] == "/marking"


def test_guessing_gets_slower_for_a_name_and_for_an_address(tmp_path: Path) -> None:
    office = Office(tmp_path)
    visitor = office.visitor()
    guesses = [
        visitor.post("/marking/sign-in", data={"name": "ann", "password": f"wrong {i}"}) for i in range(FREE + 1)
    ]
    assert [one.status_code for one in guesses] == [401] * FREE + [429]
    assert int(guesses[-1].headers["retry-after"]) >= 1
    right = {"name": "ann", "password": PASSWORD}
    assert visitor.post("/marking/sign-in", data=right).status_code == 429  # tried, it would tell that it is right
    unknown = visitor.post("/marking/sign-in", data={"name": "nobody", "password": "x"})
    assert unknown.status_code == 401 and "do not belong together" in unknown.text
    with sqlite3.connect(tmp_path / "marking.sqlite") as file:
        waits = [until - time.time() for (until,) in file.execute("SELECT until FROM failures WHERE until > 0")]
        assert waits and max(waits) <= 2
        file.execute("UPDATE failures SET until = 0")
    assert visitor.post("/marking/sign-in", data=right).url.path == "/marking"


def test_secrets_are_kept_as_hashes_and_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    office = Office(tmp_path)
    token = office.marking.accounts.invite("eve", "annotator")
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("marking.sqlite*"))
    cookies = [value for client in office.people.values() for value in client.cookies.values()]
    for secret in (PASSWORD, token, *cookies):
        assert secret.encode() not in kept
    assert (tmp_path / "marking.sqlite").stat().st_mode & 0o077 == 0
    answer = office.visitor(follow_redirects=False).post(f"/marking/join/{token}", data={"password": PASSWORD})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "secure" not in cookie
    again = office.visitor().post(f"/marking/join/{token}", data={"password": "another one"})
    assert again.status_code == 404 and "used or has expired" in again.text
    assert office.visitor().post("/marking/join/x", data={"name": "eve", "password": PASSWORD}).status_code == 404
    short = office.marking.accounts.invite("eve", "annotator")
    assert office.visitor().post(f"/marking/join/{short}", data={"password": "short"}).status_code == 422


def test_a_session_ends_with_signing_out_being_shut_out_and_a_new_password(tmp_path: Path) -> None:
    office = Office(tmp_path)
    ann, ben, rita = (office.people[name] for name in ("ann", "ben", "rita"))
    stolen = dict(ann.cookies)
    ann.write("/marking/sign-out")
    assert office.visitor(cookies=stolen).get("/marking/token").json() == {}
    office.owner.write("/marking/people", name="ben", active="false")
    assert (
        ben.get("/marking/token").json() == {}
        and ben.post("/marking/sign-in", data={"name": "ben", "password": PASSWORD}).status_code == 401
    )
    office.invited("rita", "annotator")  # a new invitation of the same name
    assert rita.get("/marking/token").json() == {}
    last = office.owner.write("/marking/people", name="olga", active="false")
    assert last.status_code == 422 and "only owner" in last.text and office.owner.secret


@pytest.mark.parametrize(
    "path",
    [
        "/marking/p/..%2f..%2fetc",
        "/marking/p/x",
        "/static/annotation/../tools.py",
        "/static/annotation/%2e%2e/tools.py",
    ],
)
def test_no_path_leads_out(office: Office, path: str) -> None:
    answer = office.owner.get(path)
    assert answer.status_code in (404, 422) and "import" not in answer.text


@pytest.mark.parametrize("run", ["../out", "/tmp/out", "a/../../out", "tasks", "", "a b", "x,output_dir=y", "-x", ".x"])
def test_a_run_is_started_below_the_directory_alone(office: Office, run: str) -> None:
    (office.directory / "encoder").mkdir(exist_ok=True)
    (office.directory / "encoder" / "config.json").write_text("{}")
    answer = office.owner.write(office.here, action="train", kind="relevance", model="encoder", run=run)
    assert answer.status_code == 422 and not office.marking.trainings.made
    for model in ("../encoder", "/etc", "none"):
        refused = office.owner.write(office.here, action="train", kind="relevance", model=model, run="new")
        assert refused.status_code == 422 and not office.marking.trainings.made


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"id": "x", "item": "q1", "before": {}, "update": {}}, "id"),
        (change("q1", {"spans": [{"start": -1, "end": 2, "type": "a", "evidence": [], "note": ""}]}), "start"),
        (change("q1", {"spans": [{"start": 1.5, "end": 2, "type": "a", "evidence": [], "note": ""}]}), "start"),
        (change("q1", {"status": "admitted"}), "status"),
        (change("q1", {"role": "owner"}), "role"),
        (change("q1", {"seconds": -1}), "seconds"),
        (change("q1", {"correction": "x" * 200_001}), "correction"),
        (change("nothing", {"noError": True}), "not yours"),
    ],
)
def test_odd_changes_are_refused_and_nothing_of_their_batch_is_kept(
    office: Office, event: dict[str, object], problem: str
) -> None:
    before = office.marking.work.version(office.key)
    answer = office.send("ann", change("q1", {"noError": False}), event)
    assert answer.status_code == 422 and problem in answer.text
    assert office.marking.work.version(office.key) == before


def test_oversized_bodies_are_refused(office: Office) -> None:
    body = json.dumps({"annotator": "ann", "events": [], "x": "y" * BODY_BYTES})
    headers = {"x-csrf-token": office.people["ann"].secret}
    assert office.people["ann"].post(office.here + "/events", content=body, headers=headers).status_code == 413
    many = [change("q1", {"noError": True}) for _ in range(501)]
    assert office.send("ann", *many).status_code == 422


def test_runs_and_playground_are_for_insiders_where_other_machines_reach_the_server(tmp_path: Path) -> None:
    office = Office(tmp_path, {"names": ("marks.example",), "reachable": True})
    cases = {"ann": 404, "rita": 200}
    for name, status in cases.items():
        client = office.visitor()
        client.post("/marking/sign-in", data={"name": name, "password": PASSWORD})
        for path in ("/runs", "/playground", "/playground/run?name=x"):
            answer = client.get(path)
            assert answer.status_code == status or (status == 200 and path.endswith("=x")), (name, path)
    assert office.visitor(follow_redirects=False).get("/runs").status_code == 303
    cookie = client.post("/marking/sign-in", data={"name": "rita", "password": PASSWORD}, follow_redirects=False)
    assert "secure" in cookie.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"host": "0.0.0.0"}, "without TLS"),
        ({"host": "0.0.0.0", "certificate": "c.pem"}, "belong together"),
        ({"host": "0.0.0.0", "certificate": "c.pem", "key": "k.pem"}, "names"),
        ({"host": "::", "names": ("a.example",)}, "without TLS"),
        ({"behind_proxy": True}, "names"),
    ],
)
def test_it_does_not_listen_to_others_without_tls_or_a_proxy(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Serve(**options)
    Serve(host="0.0.0.0", certificate="c.pem", key="k.pem", names=("a.example",))


@pytest.mark.slow
@needs_openssl
def test_by_tls_of_its_own_accounts_alone_see_anything(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with listening("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    words = (f"certificate={certificate}", f"key={key}", "names=[localhost]", f"port={port}", "open=false")
    served = start_script("serve", str(tmp_path), *words)
    try:
        address = f"https://localhost:{port}"
        with httpx.Client(base_url=address, verify=ssl.create_default_context(cafile=certificate)) as client:
            while True:
                assert served.poll(0.1) is None, served.printed("stderr")
                with suppress(httpx.TransportError):
                    assert client.get("/healthz").status_code == 200
                    break
            link = next(word for word in served.printed("stdout").split() if "/marking/join/" in word)
            assert link.startswith(address)
            assert client.get("/runs").headers["location"].startswith("/marking/sign-in")
            came = client.post(link, data={"name": "olga", "password": PASSWORD})
            assert came.status_code == 303 and "secure" in came.headers["set-cookie"].lower(), came.text
            assert client.get("/runs").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{port}/healthz")
        with pytest.raises(httpx.ConnectError, match="self-signed"):
            httpx.get(f"{address}/healthz")
    finally:
        served.send_signal(signal.SIGKILL)
