"""Components behind a server give what they give in process, whoever asks at the same time and whatever fails."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

import torch
from feedback_samples import LAKE
from reward_model_samples import CORPUS, enlarged, prompt, save_longformer
from served_toy import Doubts, Words, served, serving
from verl_toy import FakeDataProto

from finegrained_rlhf.bridges import (
    DenseReward,
    VerlRewardManager,
    trl_reward_function,
    trl_reward_functions,
    verl_compute_score,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.models.tiny_networks import build_tokenizer, causal_tokenizer
from finegrained_rlhf.rewards import ComponentConfig, RewardComposer, RewardConfig, ServedScorer
from finegrained_rlhf.runtime import RemoteConfig
from finegrained_rlhf.runtime.remote.client import RemoteError
from finegrained_rlhf.web import guard
from finegrained_rlhf.web.rewards import ServeRewards
from reward_models.encoders.models import new_reward_model
from reward_models.record import RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer

CPU = torch.device("cpu")
SENT = {"Content-Type": "application/json"}
DOCUMENT = Path(__file__).parents[1] / "data/serve_rewards_openapi.json"
RESPONSES = [
    "It is cold, wide and deep, they say. Yes! It was warm; not so bad, they say.",
    "",
    "Größe 🥊 zählt, they say. It is good.",
    "   ",
    "It is cold. It is wide. It is deep.",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    encoder = save_longformer(folder / "encoder")
    for kind, moments in (("relevance", {}), ("completeness", {"mean": 0.5, "std": 2.0})):
        enlarged(new_reward_model(encoder, RewardModelRecord(kind, global_attention="first", **moments))).save(
            folder / kind
        )
    return {path.name: str(path) for path in folder.iterdir()}


def scorers(models: dict[str, str]) -> dict[str, Any]:
    return {"relevance": SegmentScorer(models["relevance"]), "completeness": SequenceScorer(models["completeness"])}


def asked(text: str) -> Prompt:
    return Prompt(text, text, (), {"question": text})


def set_up(scorer: ServedScorer) -> ServedScorer:
    scorer.setup(CPU)
    return scorer


def test_served_rewards_are_those_of_the_models_in_process(models: dict[str, str]) -> None:
    prompts, weights = [prompt(f"p{i}") for i in range(len(RESPONSES))], {"relevance": 0.3, "completeness": 0.5}
    settings = {"relevance": ComponentConfig(empty=-1.0, reading="prefix")}
    own = RewardComposer(RewardConfig(scorers(models), weights, settings))
    with serving(scorers(models)) as server:
        remote = {name: served(server.url, name, batch_size=2) for name in weights}
        other = RewardComposer(RewardConfig(remote, weights, settings))
        for composer in (own, other):
            composer.setup(CPU)
            composer.check_prompts(prompts)
        expected, given = own.score(prompts, RESPONSES), other.score(prompts, RESPONSES)
        for name in weights:
            assert [*map(tuple, given[name].spans)] == [*map(tuple, expected[name].spans)]
            assert [*map(list, given[name].values)] == [pytest.approx(row, abs=1e-6) for row in expected[name].values]
            assert given[name].whole_response == expected[name].whole_response
        for declared in ("reads_on", "look_ahead", "error_free_from", "value_range"):
            in_process = getattr(own.config.components["relevance"], declared)
            assert getattr(remote["relevance"], declared) == in_process
        bridge = [DenseReward(one.config).of_responses(prompts, RESPONSES) for one in (own, other)]
        assert bridge[1] == {name: pytest.approx(values, abs=1e-6) for name, values in bridge[0].items()}
        with pytest.raises(RemoteError, match="record p, field question: .* needs 1?[0-9]{3} tokens|status 422"):
            other.check_prompts([prompt("p", question="long " * 500)])


def test_bridges_are_paid_by_a_server_what_models_in_process_pay(models: dict[str, str]) -> None:
    """The functions for TRL, the manager and the `compute_score` for verl; a response has no score of one component."""
    weights = {"relevance": 0.3, "completeness": 0.5, "doubts": 2.0}
    settings = {"relevance": ComponentConfig(empty=-1.0)}
    local = {**scorers(models), "doubts": Doubts()}
    texts = [*(text.replace("bad", "good") for text in RESPONSES), "who, they say"]
    row = {"question": "What is the lake like?", "passages": [[LAKE.title, *LAKE.sentences]], "references": ["Wide."]}
    asked_trl = {name: [value] * len(texts) for name, value in row.items()}
    words = causal_tokenizer(build_tokenizer(CORPUS), 160)
    ids = [[*words(text, add_special_tokens=False)["input_ids"], words.eos_token_id] for text in texts]
    batch = FakeDataProto([ids[0][:3]] * len(ids), ids, width=40, extra_info=[row] * len(ids))
    alone = FakeDataProto([ids[0][:3]], [ids[4]], width=40, extra_info=[row])

    class Manager(VerlRewardManager):
        def make_reward(self) -> DenseReward:
            return reward

    paid: list[dict[str, Any]] = []
    with serving({**scorers(models), "doubts": Doubts()}) as server:
        for components in (local, {name: served(server.url, name, batch_size=4) for name in weights}):
            reward = DenseReward(RewardConfig(components, weights, settings))
            functions, found = trl_reward_functions(reward)
            assert found == list(weights.values())
            called: dict[str, Any] = {"prompts": ["task"] * len(texts), "completions": texts, **asked_trl}
            paid.append({f"trl/{function.__name__}": function(**called) for function in functions})
            paid[-1]["trl"] = trl_reward_function(reward)(**called)
            manager = Manager(words)
            whole = manager(batch, return_dict=True)
            paid[-1]["verl"] = whole["reward_tensor"].reshape(-1).tolist()
            one = asyncio.run(manager.run_single(alone))
            paid[-1]["loop"] = [one["reward_score"]]
            for name, part in json.loads(one["reward_extra_info"]["fine_grained"]).items():
                paid[-1] |= {f"loop/{name}": part["values"], f"tokens/{name}": part["tokens"]}
            score = verl_compute_score(reward)("toy", texts[4], None, row)
            paid[-1] |= {f"score/{name}": [value] for name, value in score.items()}
        assert server.rounds.scored["relevance"] >= 2 * len(texts)
    own, other = paid
    assert other == {name: pytest.approx(values, abs=1e-6, nan_ok=True) for name, values in own.items()}
    assert math.isnan(own["trl/doubts"][-1]) and len(own["loop/relevance"]) == 3 and sum(map(bool, own["verl"])) > 10


def test_requests_that_wait_are_scored_together_and_answered_apart() -> None:
    words = Words()
    with serving({"words": words}) as server, ThreadPoolExecutor(8) as pool:
        clients = [set_up(served(server.url, "words")) for _ in range(8)]
        prompts = [[asked(f"q{c}{row}") for row in range(3)] for c in range(8)]
        texts = [[f"a{c} one{row} two" for row in range(3)] for c in range(8)]
        words.gate.clear()
        answers = [pool.submit(clients[c].score, prompts[c], texts[c]) for c in range(8)]
        wait_until(lambda: server.rounds.waiting == 24)
        words.gate.set()
        for c, answer in enumerate(answers):
            expected = Words().score(prompts[c], texts[c])
            assert answer.result() == SegmentScores(expected.spans, expected.values)
        assert sum(words.calls) == 24 and len(words.calls) <= 2  # what came first, and all that came meanwhile


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_a_scorer_refuses_fails_alone() -> None:
    words = Words()
    with serving({"words": words}) as server, ThreadPoolExecutor(4) as pool:
        good, bad, broken = (set_up(served(server.url, "words", {"budget_s": 0.5})) for _ in range(3))
        words.gate.clear()
        first = pool.submit(good.score, [asked("q")], ["first"])
        wait_until(lambda: bool(words.calls))
        rest = [
            pool.submit(client.score, [asked("q")], [text])
            for client, text in ((good, "fine"), (bad, "bad"), (broken, "broken"))
        ]
        wait_until(lambda: server.rounds.waiting == 4)
        words.gate.set()
        assert first.result().values[0] and rest[0].result().values[0]
        with pytest.raises(RemoteError, match='status 422, {"error":"record q: a bad response"}'):
            rest[1].result()
        with pytest.raises(RemoteError, match="given up .* status 500, {.*MemoryError; the server's log says where"):
            rest[2].result()
    with (
        serving({"words": Words()}) as server,
        pytest.raises(RemoteError, match="no component 'other'; there are words"),
    ):
        served(server.url, "other").setup(CPU)


def test_a_component_that_counts_is_asked_for_each_request() -> None:
    texts = ["one two", "who", "three"]
    with serving({"doubts": Doubts()}) as server:
        client = set_up(served(server.url, "doubts", batch_size=2))
        given, expected = client.score([asked("q")] * 3, texts), Doubts().score([asked("q")] * 3, texts)
        assert client.counted == Doubts.counted and given.unscored == expected.unscored == {1}
        assert given.counts == expected.counts and [*given.values] == [*expected.values]


def test_a_full_queue_says_when_to_come_again_and_nothing_is_lost() -> None:
    words = Words()
    with serving({"words": words}, rows_at_once=2, rows_waiting=4) as server, ThreadPoolExecutor(6) as pool:
        clients = [set_up(served(server.url, "words")) for _ in range(6)]
        words.gate.clear()
        answers = [pool.submit(client.score, [asked(f"q{n}")] * 2, ["a", "b"]) for n, client in enumerate(clients)]
        wait_until(lambda: server.rounds.refused > 0)
        body = {"component": "words", "prompts": [{}], "responses": [{"prompt": 0, "text": "a"}]}
        refused = httpx.post(f"{server.url}/v1/scores", json=body)
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
        words.gate.set()
        for number, answer in enumerate(answers):
            assert answer.result().values == Words().score([asked(f"q{number}")] * 2, ["a", "b"]).values


def test_a_server_that_is_away_is_waited_for_and_one_of_another_version_is_never_mixed_in() -> None:
    with serving({"words": Words()}) as server:
        client = set_up(served(server.url, "words"))
        before = client.score([asked("q")], ["one two"])
        port = int(server.url.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.score, [asked("q")], ["one two"])
        time.sleep(0.1)
        with serving({"words": Words()}, port=port):
            assert waiting.result() == before
    with serving({"words": Words()}, port=port, version="new"):
        with pytest.raises(
            ConfigError, match="words is version new-words and this run is rewarded by v-words; .*mixed"
        ):
            client.score([asked("q")], ["one"])
        with pytest.raises(ConfigError, match="version new-words"):
            set_up(served(server.url, "words", version="v-words"))
        kept = {"moments": {}, "constraints": {}, "versions": {"words": "v-words"}}
        resumed = RewardComposer(RewardConfig({"words": served(server.url, "words")}, {"words": 1.0}))
        resumed.setup(CPU)
        with pytest.raises(ConfigError, match="version new-words and this run was rewarded by v-words"):
            resumed.load_state(kept)
        resumed.load_state(resumed.state())
        wanted = RewardComposer(
            RewardConfig({"words": served(server.url, "words", version="new-words")}, {"words": 1.0})
        )
        wanted.setup(CPU)
        wanted.load_state(kept)
        assert wanted.state()["versions"] == {"words": "new-words"}


def test_a_server_that_ends_answers_what_it_began() -> None:
    words = Words()
    with ThreadPoolExecutor(1) as pool:
        with serving({"words": words}) as server:
            client = set_up(served(server.url, "words", {"budget_s": 1.0}))
            words.gate.clear()
            answer = pool.submit(client.score, [asked("q")], ["one two"])
            wait_until(lambda: bool(words.calls))
            threading.Timer(0.3, words.gate.set).start()  # when the server has been told to end
        assert answer.result().values[0]


def test_what_waits_for_a_client_that_has_gone_is_not_scored() -> None:
    words = Words()
    with serving({"words": words}) as server, ThreadPoolExecutor(1) as pool:
        client = set_up(served(server.url, "words"))
        hasty = set_up(served(server.url, "words", {"timeout_s": 0.2, "budget_s": 0.1}))
        words.gate.clear()
        answer = pool.submit(client.score, [asked("q")], ["one two"])
        wait_until(lambda: bool(words.calls))
        with pytest.raises(RemoteError, match="no answer in time"):
            hasty.score([asked("q")] * 2, ["one", "two"])
        time.sleep(0.1)
        words.gate.set()
        assert answer.result().values[0] and client.score([asked("q")], ["three"]).values[0]
        wait_until(lambda: server.rounds.waiting == 0)
        assert words.calls == [1, 1]


def test_keys_limits_and_odd_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"words": Words()}, keys=["key-a", "key-b"], body_bytes=2000, hosts=["127.0.0.1"]) as server:
        monkeypatch.setenv("REWARD_KEY", "key-b")
        with pytest.raises(ConfigError, match="Bearer KEY.*no key was given: key_variable"):
            served(server.url, "words").setup(CPU)
        client = set_up(served(server.url, "words", {"key_variable": "REWARD_KEY"}))
        assert client.score([asked("q")], ["one"]).values[0]
        with pytest.raises(RemoteError, match="status 413, .*2,000 bytes; expected fewer responses"):
            client.score([asked("q")], ["x" * 2000])
        with pytest.raises(DataError, match="record q, field metadata.question: cannot be sent as JSON"):
            client.score([Prompt("q", "q", (), {"question": object()})], ["one"])
        with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer key-a"}) as http:
            assert http.post("/v1/scores", content=iter([b"x" * 900] * 3)).status_code == 413  # of no length
            assert http.get("/v1/components").json()[0]["version"] == "v-words"
            assert 'responses_scored_total{component="words"} 1\n' in http.get("/metrics").text
            assert http.get("/metrics", headers={"Authorization": "Bearer key-c"}).status_code == 401
            assert http.get("/healthz", headers={"Authorization": ""}).json()["status"] == "ok"
            assert http.get("/healthz", headers={"Host": "evil.example"}).status_code == 400
            schemas = http.get("/openapi.json").json()["components"]["schemas"]
            assert set(schemas["ResponseScores"]["properties"]) == {"segments", "values", "decided_at"}
            row = {"prompt": 0, "text": "one, two"}
            body = {"component": "words", "prompts": [{"metadata": {"question": "q"}}], "responses": [row]}
            answer = http.post("/v1/scores", json=body).json()
            assert answer["wire"] == 1 and answer["results"][0]["segments"] == [[0, 3], [5, 8]]
            assert answer["results"][0]["decided_at"] == [3, None]
            for change, problem in (
                ({"responses": [row | {"prompt": 1}]}, "responses.0.prompt: there are 1 prompts"),
                ({"responses": [row | {"x": 1}]}, "responses.0.x: Extra inputs are not permitted"),
                ({"component": 3}, "component: Input should be a valid string"),
                ({"responses": [row | {"prompt": True}]}, "responses.0.prompt: Input should be a valid integer"),
                ({"responses": [row | {"text": "a \ud800"}]}, "responses.0.text: Value error, "),
                ({"prompts": [{"metadata": {"question": "\udfff"}}]}, "prompts.0.metadata.question: Value error, "),
            ):
                refused = http.post("/v1/scores", content=json.dumps(body | change), headers=SENT)
                assert refused.status_code == 422 and problem in refused.json()["error"]
            assert "Content-Type: application/json" in http.post("/v1/scores", content="{}").json()["error"]


def test_a_request_that_does_not_go_on_keeps_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_PAUSE_S", 0.2)
    begun = b"POST /v1/scores HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with serving({"words": Words()}) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port), timeout=30) as connection:
            connection.sendall(begun)
            assert b" 408 " in connection.recv(4096).splitlines()[0]  # and the server ends, or this test does not


def ours(part: Any) -> Any:
    """An OpenAPI document without the titles and names that FastAPI and pydantic make up."""
    if isinstance(part, list):
        return [ours(item) for item in part]
    if not isinstance(part, dict):
        return part
    made_up = {"title", "summary", "operationId"}
    return {key: ours(value) for key, value in part.items() if not (key in made_up and isinstance(value, str))}


def test_the_wire_format_is_that_of_the_committed_document(tmp_path: Path) -> None:
    with serving({"words": Words()}) as server:
        given = httpx.get(f"{server.url}/openapi.json").json()
    found = {key: ours(given[key]) for key in ("paths", "components")}
    (tmp_path / DOCUMENT.name).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert json.loads(DOCUMENT.read_text()) == found, f"if meant: cp {tmp_path / DOCUMENT.name} {DOCUMENT}"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"host": "0.0.0.0"}, "can be reached by other machines; expected TLS"),
        ({"host": "0.0.0.0", "certificate": "c", "private_key": "k"}, "can be reached by other machines"),
        ({"host": "0.0.0.0", "key_variable": "K"}, "can be reached by other machines"),
        ({"certificate": "c"}, "expected both, or none"),
    ],
)
def test_other_machines_come_in_with_tls_and_a_key_alone(settings: dict[str, Any], problem: str) -> None:
    reward = RewardConfig({"words": Words()}, {"words": 1.0})
    assert ServeRewards(reward, host="::1") and ServeRewards(reward, host="0.0.0.0", behind_proxy=True)
    with pytest.raises(ConfigError, match=problem):
        ServeRewards(reward, **settings)


def test_keys_are_of_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward, file = RewardConfig({"words": Words()}, {"words": 1.0}), tmp_path / "keys"
    file.write_text("one\n\n two \n")
    monkeypatch.setenv("K", "three")
    assert ServeRewards(reward, key_variable="K", key_file=str(file)).keys() == ["three", "one", "two"]
    file.write_text("\n")
    with pytest.raises(ConfigError, match="keys: expected keys of printable ASCII"):
        ServeRewards(reward, key_file=str(file)).keys()
    monkeypatch.delenv("K")
    with pytest.raises(ConfigError, match="environment variable K: expected keys"):
        ServeRewards(reward, key_variable="K").keys()


def test_a_version_is_of_what_a_model_holds_and_not_of_where_it_lies(models: dict[str, str], tmp_path: Path) -> None:
    def version(path: str | Path, precision: str = "fp32", **settings: Any) -> str:
        reward = RewardConfig({"relevance": SegmentScorer(str(path), **settings)}, {"relevance": 1.0})
        return ServeRewards(reward).versions(precision)["relevance"]

    first, copy = version(models["relevance"]), tmp_path / "copy"
    shutil.copytree(models["relevance"], copy)
    assert version(copy) == first == version(copy, batch_size=4)
    assert len({first, version(copy, negative=-2.0), version(copy, "bf16")}) == 3
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert version(copy) != first


def test_a_client_reads_no_answer_of_another_format_or_component() -> None:
    client = ServedScorer(RemoteConfig("http://127.0.0.1:9/"), "words")
    about = {"name": "words", "version": "v", "error_free_from": 0, "reads_on": False, "look_ahead": 0}
    answer = {
        "wire": 1,
        "component": {**about, "counted": [], "value_range": None},
        "whole_response": False,
        "results": [{"segments": [[0, 1]], "values": [1.0], "decided_at": [None]}],
        "counts": {},
    }
    assert client._read(answer).values == [(1.0,)] and client.served_version == "v"
    for broken in (
        {"wire": 2},
        {"component": about | {"name": "other"}},
        {"results": [{"segments": [[0, 1]], "values": []}]},
        {"results": [{"segments": [[0, 1, 2]], "values": [1.0]}]},
        {"results": 3},
    ):
        with pytest.raises(Exception, match="an answer (of wire format|that is no scores)"):
            client._read(answer | broken)
