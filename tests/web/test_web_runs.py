"""Runs, live: what the table and the pages show, what they refuse, and how they follow a run that trains."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from report_toy import COMPONENTS, HOSTILE, step_row, tags_of, write_lines, write_old_run, write_toy_run
from served import client_of
from starlette.testclient import TestClient
from strangers import make_strangers

from finegrained_rlhf.core.files import write_json, write_text
from finegrained_rlhf.report.elements.html import escape
from finegrained_rlhf.web.runs.routes import VIEWS
from finegrained_rlhf.web.runs.rows import GrowingRows

HOSTILE_NAME = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs")
    write_toy_run(root / "world" / "first")
    shutil.copytree(root / "world" / "first", root / "world" / "second")
    write_old_run(root / HOSTILE_NAME)
    (root / "broken").mkdir()
    write_text(root / "broken" / "config.yaml", "{ no yaml: [")
    write_text(root / "broken" / "metrics.jsonl", f"{json.dumps(step_row(1))}\nno json\n")
    return root


@pytest.fixture(scope="module")
def client(directory: Path) -> TestClient:
    return client_of(directory)


def named(page: str) -> list[str]:
    """The runs of a table, in order."""
    return re.findall(r'<td class="name"><a [^>]*><bdi>(.*?)</bdi>', page)


def test_the_table_shows_every_run_and_names_what_is_damaged(client: TestClient) -> None:
    page = client.get("/runs").text
    assert sorted(named(page)) == sorted([escape(HOSTILE_NAME), "broken", "world/first", "world/second"])
    row = re.search(r"world/first.*?</tr>", page, re.DOTALL)
    assert row is not None
    assert "finished" in row[0] and re.search(r"6<span class=\"of\"> / 6", row[0])
    assert "0.900" in row[0] and "2.500" in row[0] and 'class="spark"' in row[0]  # reward, KL, scores of validations
    broken = re.search(r">broken<.*?</tr>", page, re.DOTALL)
    assert broken is not None and "damaged" in broken[0] and "config.yaml: not valid YAML" in broken[0]


def test_the_table_is_filtered_and_sorted_by_its_address(client: TestClient) -> None:
    def shown(query: str) -> list[str]:
        return named(client.get(f"/runs?{query}").text)

    assert shown("sort=name")[-2:] == ["world/first", "world/second"]
    assert shown("sort=-name")[:2] == ["world/second", "world/first"]
    assert shown("q=WORLD+first") == ["world/first"]
    assert shown("state=damaged") == ["broken"]
    assert shown("sort=step")[-1] not in (escape(HOSTILE_NAME), "broken")
    assert shown("q=nothing") == [] and "No run is like that" in client.get("/runs?q=nothing").text
    assert client.get("/runs?page=x").status_code == 422
    page = client.get("/runs?q=world&sort=name").text
    assert "/runs?q=world&amp;sort=-name" in page and "/runs?q=world&amp;sort=-reward" in page


@pytest.mark.parametrize("view", [*VIEWS, "answers&kind=training", "answer&kind=training&step=3&row=1"])
def test_every_view_of_every_run_is_inert(client: TestClient, view: str) -> None:
    for name in ("world/first", HOSTILE_NAME, "broken"):
        answer = client.get("/runs/run", params={"name": name} | dict(re.findall(r"(\w+)=(\w+)", f"view={view}")))
        missing = view.startswith("answer&") and name != "world/first"
        assert answer.status_code == (404 if missing else 200), (name, view)
        for tag, attributes in tags_of(answer.text):
            assert tag not in ("iframe", "object", "style", "base", "meta") or tag == "meta", tag
            assert not any(key.startswith("on") or key == "style" for key in attributes), (tag, attributes)
            for key in ("src", "href", "action"):
                assert attributes.get(key, "/").startswith(("/", "#")) and attributes.get(key) != "//", attributes
            assert tag != "script" or attributes["src"].startswith("/static/")
            assert tag != "img" or attributes["src"] == "/static/icon.svg"


def test_hostile_answers_are_shown_as_text(client: TestClient) -> None:
    page = client.get("/runs/run", params={"name": "world/first", "view": "answers"}).text
    texts = re.sub(r"<[^>]*>", "", page)
    assert "&lt;script&gt;window.pwned" in texts
    assert escape(COMPONENTS[1]) in page


def test_the_overview_says_whether_it_is_hacking(client: TestClient) -> None:
    page = client.get("/runs/run", params={"name": "world/first"}).text
    assert "Is it hacking?" in page and "Signs of reward hacking" in page and 'aria-label="Total reward' in page


def test_an_answer_is_traced_token_by_token(client: TestClient, directory: Path) -> None:
    sample = json.loads((directory / "world/first/samples/step_3.jsonl").read_text().splitlines()[1])
    query = {"name": "world/first", "view": "answer", "kind": "training", "step": 3, "row": 1}
    page = client.get("/runs/run", params=query).text
    assert page.count('class="token"') == len(sample["tokens"]["ends"])
    assert "Advantage, and what it is made of" in page and f"step 3, sample {sample['sample'] + 1}" in page
    assert client.get("/runs/run", params={**query, "row": len(HOSTILE)}).status_code == 404
    assert client.get("/runs/run", params={**query, "step": 2}).status_code == 404


def test_a_prompt_over_time_has_its_answer_of_every_step(client: TestClient) -> None:
    query = {"name": "world/first", "view": "answers", "prompt": "prompt-1"}
    page = client.get("/runs/run", params=query).text
    assert re.findall(r'row=1">(step \d)', page) == ["step 0", "step 2", "step 4", "step 6"]


def test_runs_stand_side_by_side(client: TestClient) -> None:
    names = ["world/first", "world/second"]
    page = client.get("/runs/compare", params={"run": names}).text
    assert all(f'data-name="{name}"' in page for name in names)
    assert client.get("/runs/compare", params={"run": ["world/first"] * 13}).status_code == 422
    assert client.get("/runs/compare").status_code == 422
    assert client.get("/runs/compare", params={"run": ["world/first", "nothing"]}).status_code == 404


@pytest.mark.parametrize("name", ["../secret", "world/../../secret", "/etc", "", "world", "world/first/../first", "\0"])
def test_names_are_looked_up_and_never_made_paths(client: TestClient, directory: Path, name: str) -> None:
    if not (directory.parent / "secret").exists():
        write_toy_run(directory.parent / "secret")
    for path in ("/runs/run", "/runs/live", "/runs/compare"):
        key = "name" if path == "/runs/run" else "run"
        assert client.get(path, params={key: name}).status_code == 404


LINKED = ["metrics.jsonl", "eval.jsonl", "config.yaml", "samples", "samples/step_1.jsonl", "policy", "checkpoints"]


@pytest.mark.parametrize("file", LINKED)
def test_a_run_that_links_out_of_the_directory_is_not_read(tmp_path: Path, file: str) -> None:
    secret = write_toy_run(tmp_path / "secret" / "run")
    (secret / "checkpoints").mkdir()
    write_toy_run(tmp_path / "outputs" / "run")
    link = tmp_path / "outputs" / "run" / file
    if link.exists():
        shutil.rmtree(link) if link.is_dir() else link.unlink()
    os.symlink(secret / file, link)
    client = client_of(tmp_path / "outputs")
    assert f"{file} links out of the directory that is served" in client.get("/runs").text
    for view in VIEWS:
        page = client.get("/runs/run", params={"name": "run", "view": view}).text
        assert "Nothing of this run is read." in page and "reward/" not in page and "<svg" not in page


def test_a_link_within_the_directory_is_followed_and_a_linked_directory_is_no_run(tmp_path: Path) -> None:
    write_toy_run(tmp_path / "outputs" / "run")
    write_toy_run(tmp_path / "secret")
    (tmp_path / "outputs" / "run" / "metrics.jsonl").rename(tmp_path / "outputs" / "kept.jsonl")
    os.symlink(tmp_path / "outputs" / "kept.jsonl", tmp_path / "outputs" / "run" / "metrics.jsonl")
    os.symlink(tmp_path / "secret", tmp_path / "outputs" / "other")
    client = client_of(tmp_path / "outputs")
    assert named(client.get("/runs").text) == ["run"]
    assert 'aria-label="Total reward' in client.get("/runs/run?name=run").text


def test_what_a_configuration_names_outside_is_not_read(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "outputs" / "run")  # its reward models lie below outputs/
    config = json.loads((run / "config.yaml").read_text())
    data = [
        {"text": f"question: {text[:300]}", "answer": "a secret reference"} for text in HOSTILE if "\x00" not in text
    ]
    for place, seen in ((tmp_path / "outputs" / "dev.json", True), (tmp_path / "dev.json", False)):
        write_json(place, data)
        write_json(run / "config.yaml", {**config, "validation_data": str(place)})
        page = client_of(tmp_path / "outputs").get("/runs/run?name=run&view=answers").text
        assert ("a secret reference" in page) == seen


def test_nothing_that_a_stranger_made_runs(tmp_path: Path) -> None:
    strangers = make_strangers(tmp_path)
    client = client_of(tmp_path)
    for name in re.findall(r'name="run" value="([^"]*)"', client.get("/runs").text):
        for view in VIEWS:
            assert client.get("/runs/run", params={"name": name, "view": view}).status_code == 200
    assert strangers.markers == []


def test_a_damaged_file_of_samples_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    write_text(run / "samples" / "validation_step_6.jsonl", '{"id": 1}\n')
    client = client_of(tmp_path)
    page = client.get("/runs/run?name=run&view=answers&step=6").text
    assert "Damaged." in page and "validation_step_6.jsonl" in page and "step 0, initial policy" in page
    assert "validation_step_6.jsonl" in client.get("/runs/run?name=run&view=settings").text
    assert client.get("/runs/run?name=run").status_code == 200


@pytest.mark.parametrize("place", [("reward",), ("reward", "components"), ("reward", "components", "relevance")])
def test_a_configuration_of_another_shape_is_shown(tmp_path: Path, place: tuple[str, ...]) -> None:
    run = write_toy_run(tmp_path / "run")
    config = json.loads((run / "config.yaml").read_text())
    inner = config
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = ["no", "mapping"]
    write_json(run / "config.yaml", config)
    client = client_of(tmp_path)
    assert [client.get("/runs/run", params={"name": "run", "view": view}).status_code for view in VIEWS] == [200] * 5


def test_a_page_learns_of_new_steps_by_a_small_question(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    client = client_of(tmp_path)
    page = client.get("/runs/run?name=run&view=curves").text
    before = client.get("/runs/live?run=run")
    assert len(before.content) < 200 and before.json()["version"] == re.search(r'data-version="(\w+)"', page)[1]
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(step_row(7)) + "\n" + '{"step": 8, "kl')
    after = client.get("/runs/live?run=run").json()
    assert after["version"] != before.json()["version"]
    page = client.get("/runs/run?name=run&view=curves").text
    assert f'data-version="{after["version"]}"' in page and "step <b>7</b>" in page
    assert "from 0.15 to 1.05" in page  # the total reward, 0.15 a step


# -- Files that grow ------------------------------------------------------------------------------------------------


def steps_of(growing: GrowingRows) -> list[int]:
    return [row["step"] for row in growing.read()]


def test_rows_are_read_once_and_half_a_line_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.jsonl"
    growing = GrowingRows(file)
    assert steps_of(growing) == []
    write_lines(file, [{"step": 1}, {"step": 2}])
    assert steps_of(growing) == [1, 2]
    parsed: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    with open(file, "a") as stream:
        stream.write('{"step": 3}\n{"step"')
    assert steps_of(growing) == [1, 2, 3] and parsed == [b'{"step": 3}']
    with open(file, "a") as stream:
        stream.write(": 4}\n")
    assert steps_of(growing) == [1, 2, 3, 4]
    write_lines(file, [{"step": 1}, {"step": 9}])  # replaced, as a resumed run does
    assert steps_of(growing) == [1, 9]
    file.unlink()
    assert steps_of(growing) == []


@pytest.mark.parametrize("at_once", [1, 7, 50, 1000])
def test_a_long_file_is_thinned_evenly_and_keeps_its_last_step(tmp_path: Path, at_once: int) -> None:
    file, growing = tmp_path / "metrics.jsonl", GrowingRows(tmp_path / "metrics.jsonl", kept=10)
    file.touch()
    for start in range(1, 1000, at_once):
        with open(file, "a") as stream:
            stream.writelines(f'{{"step": {step}}}\n' for step in range(start, min(start + at_once, 1000)))
        last = min(start + at_once, 1000) - 1
        steps = steps_of(growing)
        assert steps[-1] == last and steps[0] == 1 and len(steps) <= 21
        assert set(steps[:-1]) == set(range(1, last, growing.stride))
    assert growing.count == 999 and len(steps) >= 10


def test_lines_that_are_no_rows_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write_text(file, '{"step": 1}\nno\n[1]\n{"step": NaN}\n{"step": "2"}\n' + "[" * 100_000 + '\n\n{"step": 3}\n')
    growing = GrowingRows(file)
    assert steps_of(growing) == [1, 3] and growing.damaged == 5


def test_ten_thousand_steps_cost_a_thousand_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "metrics.jsonl", "".join(f'{{"step": {step}}}\n' for step in range(1, 10_001)))
    calls = counted(monkeypatch)
    steps = steps_of(GrowingRows(tmp_path / "metrics.jsonl"))
    assert 500 <= next(calls) <= 1001 and steps[-1] == 10_000


def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How often JSON was parsed, when asked."""
    number = [0]
    loads = json.loads

    def count(text: bytes) -> object:
        number[0] += 1
        return loads(text)

    monkeypatch.setattr(json, "loads", count)
    return iter(lambda: number[0], -1)
