"""The playground: what can be chosen, answers with their rewards, a bounded queue, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("fastapi")

from hub_toy import COMMIT, put_into_cache
from huggingface_hub import constants
from playground_toy import QUESTION, ROW, make_run, reward
from remote_toy import FakeService, chat
from starlette.testclient import TestClient

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.inference.best_of import BestOf
from finegrained_rlhf.inference.generator import Response
from finegrained_rlhf.rewards import RewardComposer, RewardConfig, RewardGate
from finegrained_rlhf.runtime import EndpointGenerator, RemoteConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.web import serve
from finegrained_rlhf.web.application import Settings, create_app
from finegrained_rlhf.web.playground import engine
from finegrained_rlhf.web.playground.choices import ENDPOINT, Choices, named_policies
from finegrained_rlhf.web.serve import Serve

ASKED = {"row": ROW, "reward": "run", "policies": ["run"], "samples": 4, "longest": 12}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    make_run(directory)
    return directory


def serving(
    directory: Path, monkeypatch: pytest.MonkeyPatch, config: RewardConfig | None = None, **settings: Any
) -> TestClient:
    """A client; the run's reward is a rule that anyone can check by eye."""
    monkeypatch.setattr(Choices, "reward", lambda self, name: self.components(name) and (config or reward()))
    return TestClient(create_app(Settings(directory, **settings)), base_url="http://localhost:8700")


@pytest.fixture
def client(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    with serving(made, monkeypatch) as client:
        yield client


def worth(answer: dict[str, Any], name: str) -> float:
    return sum(s["value"] for s in answer["segments"] if s["component"] == name and name not in answer["closed"])


# What is there -------------------------------------------------------------------------------------------------------


def test_the_page_offers_what_lies_below_the_directory_and_loads_no_model(client: TestClient) -> None:
    page = client.get("/playground").text
    assert '<option selected value="run">run</option>' in page and 'name="policy" value="run/policy"' not in page
    assert 'name="policy" value="run" checked' in page
    offered = client.get("/playground/run", params={"name": "run"}).json()
    assert [row["question"] for row in offered["examples"]] == [QUESTION, "who saw it?"]
    assert offered["examples"][0]["passages"] == ROW["passages"] and offered["longest"] == 12
    assert {"Irrelevant", "Unverifiable"} <= {kind["name"] for kind in offered["types"]}
    assert not hasattr(client.app.state, "playground")  # type: ignore[attr-defined]


def test_a_directory_without_runs_says_what_makes_one(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(tmp_path)), base_url="http://localhost") as client:
        assert "experiment=smoke" in client.get("/playground").text


def test_model_directories_are_listed_and_nothing_outside_is_opened(made: Path, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/gpt").symlink_to(made / "run/policy")
    assert Choices((tmp_path / "below").resolve()).policies() == []  # links are not followed
    assert Choices((made / "run/policy").resolve()).policies() == ["."]
    for name in ("../served", "/etc", "below/../../x", "gpt", "\0", "x" * 900):
        with pytest.raises(Exception, match="expected a directory below"):
            Choices((tmp_path / "below").resolve()).policy(name)


# Answers -------------------------------------------------------------------------------------------------------------


def test_answers_come_with_all_that_their_totals_are_made_of(client: TestClient) -> None:
    given = client.post("/playground/answers", json=ASKED).json()
    assert [part["name"] for part in given["components"]] == ["words", "length"]
    assert given["components"][0]["model"] == "SegmentScorer rm/words"
    texts = [answer["text"] for answer in given["answers"]]
    assert len(set(texts)) > 1 and {answer["policy"] for answer in given["answers"]} == {"run"}
    totals = [worth(answer, "words") + 0.5 * worth(answer, "length") for answer in given["answers"]]
    config = reward()
    scores = config.components["words"].score([], texts), config.components["length"].score([], texts)
    expected = [
        sum(words) + 0.5 * sum(length) for words, length in zip(scores[0].values, scores[1].values, strict=True)
    ]
    assert totals == pytest.approx(expected)
    again = client.post("/playground/answers", json=ASKED).json()
    assert [answer["text"] for answer in again["answers"]] == texts
    other = client.post("/playground/answers", json={**ASKED, "seed": 1}).json()
    assert [answer["text"] for answer in other["answers"]] != texts


def test_a_changed_answer_is_scored_beside_the_others_and_hostile_text_stays_text(client: TestClient) -> None:
    hostile = '<img src=x onerror="alert(1)"> red'
    answers = [{"policy": "run", "text": hostile, "edited": True}, {"text": "red red"}, {"text": ""}]
    given = client.post("/playground/scores", json={"row": ROW, "reward": "run", "answers": answers}).json()
    assert [worth(answer, "words") for answer in given["answers"]] == pytest.approx([1 - 3 * 0.2, 2.0, 0.0])
    assert given["answers"][0]["tokens"] > 0 and given["answers"][0]["text"] == hostile
    assert "<img" not in given["html"] and "&lt;img" in given["html"]


def test_a_conversation_and_a_text_are_asked_as_they_are(client: TestClient) -> None:
    talk = {"messages": [{"role": "user", "content": QUESTION}]}
    for row in (talk, {"text": "question: which colours? context: "}):
        assert len(client.post("/playground/answers", json={**ASKED, "row": row}).json()["answers"]) == 4
    greedy = client.post("/playground/answers", json={**ASKED, "temperature": 0}).json()
    assert len(greedy["answers"]) == 1


def test_gates_and_totals_are_those_of_best_of_n() -> None:
    config = reward(gates={"words": RewardGate(by="length", at_least=-0.5)}, end_penalty=0.25)
    chooser = BestOf(RewardComposer(config), Processes())
    from finegrained_rlhf.core.records import Prompt

    group = [Response("red", 1, True), Response("red and red", 3, False)]
    ((short, long),) = chooser.reward([Prompt("a", "", ())], [group])
    assert (short.closed, long.closed) == ((), ("words",))
    for rewarded, total in ((short, 1.0 - 0.15), (long, -0.55 - 0.25)):
        assert rewarded.total == pytest.approx(total) == pytest.approx(sum(s.weighted for s in rewarded.segments))
    assert chooser.choose([Prompt("a", "", ())], [group])[0].totals == (short.total, long.total)


# One after another ---------------------------------------------------------------------------------------------------


def test_one_request_too_many_is_refused_and_none_is_lost(client: TestClient) -> None:
    client.post("/playground/answers", json=ASKED)
    playground: engine.Playground = client.app.state.playground  # type: ignore[attr-defined]
    free = threading.Event()
    waiting = [playground.submit(free.wait, 30) for _ in range(engine.WAITING)]
    refused = client.post("/playground/answers", json=ASKED)
    assert refused.status_code == 503 and "wait for the models already" in refused.json()["error"]
    free.set()
    assert all(future.result(30) for future in waiting)
    assert client.post("/playground/answers", json=ASKED).status_code == 200


def test_a_model_that_does_not_fit_is_one_line_and_makes_others_go(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "device_bytes", lambda processes: 1000)
    refused = client.post("/playground/answers", json=ASKED)
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("run does not fit: its weights take 0.00 GB, and 0.00 GB of memory")
    playground: engine.Playground = client.app.state.playground  # type: ignore[attr-defined]
    playground._loaded["policy", "other"] = 0.0, "something large"
    sizes = chain([1000], repeat(10**12))
    monkeypatch.setattr(engine, "device_bytes", lambda processes: next(sizes))
    assert client.post("/playground/answers", json=ASKED).status_code == 200
    assert ("policy", "other") not in playground._loaded


def test_a_policy_that_its_run_exports_anew_is_loaded_anew(made: Path, client: TestClient) -> None:
    first = client.post("/playground/answers", json=ASKED)
    playground: engine.Playground = client.app.state.playground  # type: ignore[attr-defined]
    loaded = playground._loaded["policy", "run"]
    assert client.post("/playground/answers", json=ASKED).json() == first.json()
    assert playground._loaded["policy", "run"] is loaded
    os.utime(made / "run/policy/model.safetensors", (1, 1))
    assert client.post("/playground/answers", json=ASKED).json() == first.json()
    assert playground._loaded["policy", "run"] is not loaded


def test_an_endpoint_is_one_more_policy_that_the_runs_reward_scores(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {**ASKED, "policies": ["run", ENDPOINT], "samples": 2}
    with FakeService(chat(lambda prompt: "red red blue" if QUESTION in prompt else "?")) as service:
        played = EndpointGenerator(RemoteConfig(service.url, backoff_s=0.01, budget_s=0.1), "m")
        with serving(made, monkeypatch, reward(good="red"), played=played) as client:
            assert f'name="policy" value="{ENDPOINT}"' in client.get("/playground").text
            given = client.post("/playground/answers", json=body).json()["answers"]
            assert [one["policy"] for one in given] == ["run", "run", ENDPOINT, ENDPOINT]
            (one, two) = given[2:]
            assert one["text"] == two["text"] == "red red blue" and one["finished"] and one["tokens"] == 3
            assert worth(one, "words") == pytest.approx(1 + 1 - 0.2)
            edited = {"policy": ENDPOINT, "text": "red", "edited": True}
            body = {"row": ROW, "reward": "run", "answers": [edited]}
            (scored,) = client.post("/playground/scores", json=body).json()["answers"]
            assert scored["tokens"] == 1 and worth(scored, "words") == 1
            service.fault = lambda number, body: chat(lambda prompt: "red", "length")(body)
            cut = client.post("/playground/answers", json={**ASKED, "policies": [ENDPOINT]})
            assert cut.status_code == 422 and "max_tokens=4000 cut off" in cut.json()["error"]
            nobody = RemoteConfig("http://127.0.0.1:9/v1", backoff_s=0.01, budget_s=0.05)
            client.app.state.choices.endpoint = EndpointGenerator(nobody, "m")  # type: ignore[attr-defined]
            away = client.post("/playground/answers", json={**ASKED, "policies": [ENDPOINT]})
    assert away.status_code == 422 and away.json()["error"].startswith("http://127.0.0.1:9/v1: given up after")


def test_policies_that_the_owner_names_answer_and_no_others_can_be_named(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(made / "run/policy", tmp_path / "elsewhere/gpt")
    put_into_cache(tmp_path / "hub", "org/tiny", made / "run/policy")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub, local = "org/tiny@" + COMMIT, str(tmp_path / "elsewhere/gpt")
    with serving(made, monkeypatch, policies=named_policies([hub, local])) as client:
        page = client.get("/playground", params={"policy": hub}).text
        assert f'name="policy" value="{hub}" checked' in page and f'name="policy" value="{local}">' in page
        body = {**ASKED, "policies": ["run", hub, local]}
        given = client.post("/playground/answers", json=body).json()["answers"]
        assert [one["policy"] for one in given] == ["run"] * 4 + [hub] * 4 + [local] * 4
        texts = [one["text"] for one in given]
        assert texts[:4] == texts[4:8] == texts[8:] and any(texts)  # the same weights, drawn alike
        edited = {"row": ROW, "reward": "run", "answers": [{"policy": hub, "text": "red two", "edited": True}]}
        (scored,) = client.post("/playground/scores", json=edited).json()["answers"]
        assert scored["tokens"] == 2 and worth(scored, "words") == pytest.approx(0.8)
        for name in ("org/tiny", "org/tiny@main", str(tmp_path / "elsewhere"), f"{local}/", "../elsewhere/gpt"):
            refused = client.post("/playground/answers", json={**ASKED, "policies": [name]})
            assert refused.status_code == 422 and "expected a directory below served" in refused.json()["error"]


def test_a_named_policy_stands_in_the_place_of_the_one_below_by_that_name(made: Path, tmp_path: Path) -> None:
    choices = Choices(made, named={"run": tmp_path})
    assert choices.policies() == ["run"]
    with pytest.raises(ModelError, match=re.escape(f"{tmp_path}: no model here")):
        choices.policy("run")


def test_a_named_policy_that_is_none_is_refused_before_anybody_can_ask(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(serve, "listening", lambda *_: pytest.fail("bound"))
    shutil.copytree(made / "run/policy", tmp_path / "pickled")
    (tmp_path / "pickled/model.safetensors").rename(tmp_path / "pickled/pytorch_model.bin")
    shutil.copytree(made / "run/policy", tmp_path / "bert")
    config = json.loads((tmp_path / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps({**config, "architectures": ["T5ForTokenClassification"]}))
    wrong = {
        "org/absent": "org/absent: no such file or directory, and the Hub's model is not",
        "org/absent@v2": "revision v2 of the Hub's model is not",
        str(tmp_path / "nothing"): "no model here",
        str(tmp_path / "pickled"): "safetensors",
        str(tmp_path / "bert"): "T5ForTokenClassification, expected a causal or a sequence-to-sequence language model",
    }
    for name, words in wrong.items():
        with pytest.raises(ModelError, match=re.escape(words)):
            Serve(str(made), policies=[str(made / "run"), name]).run()


# What is refused -----------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown run": ({"reward": "nothing"}, "expected a directory below"),
    "a run above": ({"reward": "../other"}, "expected a directory below"),
    "a model above": ({"policies": ["../../etc"]}, "expected a directory below"),
    "no endpoint": ({"policies": [ENDPOINT]}, "no endpoint is played"),
    "no policy": ({"policies": []}, "policies"),
    "no prompt": ({"row": {}}, "expected text, or question and passages"),
    "a passage that is none": ({"row": {"question": "a?", "passages": [[]]}}, "expected [title"),
    "a key too many": ({"row": {**ROW, "metadata": {}}}, "row.metadata"),
    "too many samples": ({"samples": 17}, "samples"),
    "half of a surrogate pair": ({"row": {"text": "\ud800"}}, "row.text"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_requests_get_one_line(client: TestClient, wrong: str) -> None:
    change, words = WRONG[wrong]
    body = json.dumps({**ASKED, **change})
    answer = client.post("/playground/answers", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and words in answer.json()["error"] and "\n" not in answer.json()["error"]


def test_writes_of_other_sites_and_oversized_bodies_are_refused(client: TestClient) -> None:
    elsewhere = {"origin": "http://evil.example"}
    for path in ("answers", "scores", "marks"):
        assert client.post(f"/playground/{path}", json=ASKED, headers=elsewhere).status_code == 403
        assert client.post(f"/playground/{path}", content=b"x" * (5 * 2**20)).status_code == 413
    assert client.post("/playground/answers", content="policies=run").status_code == 422


def test_a_run_of_a_stranger_builds_no_class_that_is_not_ours(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["reward"]["components"]["words"]["_target_"] = "os.system"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with TestClient(create_app(Settings(tmp_path)), base_url="http://localhost") as client:
        refused = client.post("/playground/answers", json=ASKED)
    assert (
        refused.status_code == 422
        and "os.system" in refused.json()["error"]
        and "not trusted" in refused.json()["error"]
    )


def test_a_class_that_the_command_line_trusts_is_admitted(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    name = "finegrained_rlhf.runtime.RemoteConfig"
    config["reward"]["components"]["words"]["endpoint"] = {"_target_": name}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=f"trust={name}"):
        Choices(tmp_path).reward("run")
    with pytest.raises(ConfigError) as refused:  # it is admitted, and then no setting of this scorer
        Choices(tmp_path, Serve(trust=name).trust).reward("run")
    assert "trusted" not in str(refused.value)
