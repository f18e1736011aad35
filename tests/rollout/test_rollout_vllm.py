"""vLLM as rollout engine, against a server of its wire form: what goes over, what comes back, and what may fail."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import make_trainer, run_together, save_checkpoint
from rl_toy import policy, prompts
from torch import Tensor
from vllm_toy import WIRE, Dropped, FakeVLLM, fake_vllm, quick, shape, wait_until

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Greedy, Rollout, Sample
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rollout import RolloutConfig, VLLMConfig, make_engine
from finegrained_rlhf.rollout.vllm.engine import VLLMEngine
from finegrained_rlhf.rollout.vllm.servers import _read
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.remote.client import RemoteError

DECODINGS = [Greedy(), Sample(3, temperature=0.9, top_k=7)]
LIMIT = 9


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that a server is started with: weights of nobody's policy."""
    directory = tmp_path_factory.mktemp("start")
    save_policy(policy("llama", seed=9), directory)
    return directory


def drawn(engine: Any, count: int = 3, step: int = 1, processes: Processes | None = None) -> Rollout:
    engine.refresh(processes or Processes())
    memory = engine.encode(prompts("llama", count))
    result: Rollout = engine.decode(memory, DECODINGS, max_new_tokens=LIMIT, seed=3, step=step)
    return result


def greedy(rollout: Rollout) -> list[list[int]]:
    rows = torch.nonzero(rollout.decoding_index == 0).flatten().tolist()
    return [rollout.response_ids[row, : int(rollout.lengths()[row])].tolist() for row in rows]


def assert_own(owner: Policy, rollout: Rollout) -> None:
    """Greedy tokens are our own engine's, and log-probabilities those of the policy's own function, as it is now."""
    own = make_engine(owner, "own")
    expected = own.decode(own.encode(rollout.prompts), [Greedy()], max_new_tokens=LIMIT)
    assert greedy(rollout) == greedy(expected)
    memory = owner.encode(rollout.prompts)
    with torch.no_grad():
        logprobs = owner.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask).logprobs
    torch.testing.assert_close(rollout.logprobs, logprobs, atol=1e-5, rtol=0)


def moved(owner: Policy) -> Policy:
    with torch.no_grad():
        for parameter in owner.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return owner


def same(a: Rollout, b: Rollout) -> bool:
    return torch.equal(a.response_ids, b.response_ids) and torch.equal(a.logprobs, b.logprobs)


def test_responses_are_those_of_the_policy_and_weights_go_over_when_they_changed(start: Path, tmp_path: Path) -> None:
    owner = policy("llama")
    with fake_vllm(start) as (a, one), fake_vllm(start) as (b, two):
        engine = VLLMEngine(owner, quick(one, two + "/"), tmp_path / "w")
        first = drawn(engine)
        assert_own(owner, first)
        assert len({tuple(row.tolist()) for row in first.response_ids[1:4]}) > 1  # samples have seeds of their own
        assert same(first, drawn(engine)) and not same(first, drawn(engine, step=2))
        assert a.loaded == b.loaded == [a.version] and (a.drawn, b.drawn) == (3 * 8, 3 * 4)  # prompts 1 and 3, and 2
        with torch.no_grad():
            next(iter(owner.model.parameters())).add_(0.0)  # was touched, and says the same
        drawn(engine)
        assert len(a.loaded) == 1
        assert_own(moved(owner), drawn(engine))
        assert len(a.loaded) == len(b.loaded) == 2
        assert [path.name for path in (tmp_path / "w").iterdir()] == [a.version]
        again = VLLMEngine(owner, quick(one), tmp_path / "again")  # a run that goes on with these weights sends none
        assert_own(owner, drawn(again))
        assert len(a.loaded) == 2


def test_a_prompt_has_the_same_responses_in_any_batch(start: Path, tmp_path: Path) -> None:
    with fake_vllm(start) as (_, url):
        engine = VLLMEngine(policy("llama"), quick(url), tmp_path)
        whole, alone = drawn(engine), drawn(engine, count=1)
    length = alone.response_ids.shape[1]
    assert torch.equal(alone.response_ids, whole.response_ids[:4, :length])


def _restarted(server: FakeVLLM, number: int) -> None:
    if number >= 5 and not server.troubled:
        server.troubled = True
        server.restart()
        raise Dropped


def _changed_in_mid_response(server: FakeVLLM, number: int) -> None:
    if number >= 5 and not server.troubled:
        server.troubled, server.version = True, "somebody's"


@pytest.mark.parametrize("trouble", [_restarted, _changed_in_mid_response], ids=["restarted", "other weights"])
@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_server_with_other_weights_gets_ours_again_and_nothing_is_mixed(
    start: Path, tmp_path: Path, trouble: Any, lora: bool, caplog: pytest.LogCaptureFixture
) -> None:
    owner = _with_adapter(tmp_path) if lora else policy("llama")
    with fake_vllm(start, adapters=lora) as (fake, url):
        engine = VLLMEngine(owner, quick(url, concurrency=2), tmp_path / "w")
        expected = drawn(engine)
        sent, fake.drawn, fake.before = len(fake.loaded), 0, trouble
        found = drawn(engine)
        assert same(found, expected)
        assert len(fake.loaded) == sent + (1 + lora) and fake.drawn >= 12
        assert f"{url} has the weights " in caplog.text
    assert_own(owner, found)


@pytest.mark.slow
def test_a_server_that_others_use_as_well_ends_the_run_in_one_line(start: Path, tmp_path: Path) -> None:
    def stolen(server: FakeVLLM, number: int) -> None:
        server.version = "theirs"

    with fake_vllm(start) as (fake, url):
        engine = VLLMEngine(policy("llama"), quick(url), tmp_path)
        fake.before = stolen
        with pytest.raises(RemoteError, match=r"drew by other weights .* 4 times .*now theirs, expected fg-.*one run"):
            drawn(engine)


@pytest.mark.slow
def test_a_server_that_is_slow_or_away_is_asked_again_and_given_up(start: Path, tmp_path: Path) -> None:
    def slow(server: FakeVLLM, number: int) -> None:
        if number >= 2 and not server.troubled:
            server.troubled = True
            time.sleep(4.0)

    with fake_vllm(start) as (fake, url):
        engine = VLLMEngine(policy("llama"), quick(url, timeout_s=3.0), tmp_path)
        fake.before = slow
        assert_own(engine.policy, drawn(engine))
    moved(engine.policy)
    engine._config = quick(url, budget_s=0.3, timeout_s=3.0)
    engine.places[0]._client.config = engine._config.remote(url, "/")  # type: ignore[attr-defined]
    with pytest.raises(RemoteError, match=r"127.0.0.1:\d+/weight_info: given up after .*budget_s.*refused"):
        drawn(engine)


def _with_adapter(tmp_path: Path, rank: int = 2) -> Policy:
    from finegrained_rlhf.models.loading import open_policy

    if not (tmp_path / "base").is_dir():
        save_policy(policy("llama"), tmp_path / "base")
    owner = open_policy(tmp_path / "base", lora=LoraConfig(rank=rank))
    with torch.no_grad():
        for name, parameter in owner.model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.linspace(-0.3, 0.3, parameter.numel()).view_as(parameter))
    return owner


@pytest.mark.needs("peft")
def test_adapters_go_over_as_adapters_or_merged(start: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    owner = _with_adapter(tmp_path)
    with fake_vllm(start, adapters=True) as (fake, url):
        engine = VLLMEngine(owner, quick(url), tmp_path / "w")
        assert_own(owner, drawn(engine))
        assert_own(moved(owner), drawn(engine))
        base, first, second = fake.loaded
        assert fake.version == base and list(fake.names) == [second] and first != second
        assert {path.name for path in (tmp_path / "w").iterdir()} == {base, second}
        assert not (tmp_path / "w" / second / "model.safetensors").exists()
    with fake_vllm(start) as (fake, url):
        assert_own(owner, drawn(VLLMEngine(owner, quick(url), tmp_path / "w2")))
        assert len(fake.loaded) == 2 and fake.version == fake.loaded[1]  # what it began with, then all of it
    assert "takes no LoRA adapter (status 404" in caplog.text and "go over whole at every step" in caplog.text


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models.policy.model.named_parameters()}


def steps(trainer: Any, first: int, last: int) -> list[dict[str, float]]:
    found = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in one.items() if not name.startswith("time/")} for one in found]


def trained(tmp_path: Path, name: str, url: str, engine: Any = None, **options: Any) -> Any:
    owner = policy("llama")
    ahead = options.pop("ahead", 0)
    settings = {"engine": "vllm", "importance_cap": 2.0, "vllm": quick(url), "ahead": ahead}
    engine = engine or VLLMEngine(owner, settings["vllm"], tmp_path / name / "w")
    return make_trainer(tmp_path / name, "llama", owner=owner, engine=engine, drawn=settings, lr=5e-3, **options)


def test_training_draws_by_the_weights_of_now_and_tells_the_gap(start: Path, tmp_path: Path) -> None:
    with fake_vllm(start) as (fake, url):
        trainer = trained(tmp_path, "a", url, validation=2)
        metrics = steps(trainer, 1, 3)
        trainer.validate(3)
    for one in metrics:
        assert one["importance/gap"] < 1e-5 and one["importance/mean"] == pytest.approx(1.0, abs=1e-4)
    assert len(fake.loaded) == len(set(fake.loaded)) == 4


def test_the_next_step_is_drawn_while_this_one_is_learnt_from(start: Path, tmp_path: Path) -> None:
    """As if nothing overlapped: by the weights before the update."""

    class AtOnce:
        """The engine without `begin`: every response is there before the step goes on."""

        def __init__(self, engine: VLLMEngine) -> None:
            self.refresh, self.encode, self.decode = engine.refresh, engine.encode, engine.decode

    with fake_vllm(start) as (_, url):
        plain = trained(tmp_path, "b", url, ahead=1)
        engine: Any = AtOnce(plain.sampler.engine)
        expected = steps(trained(tmp_path, "c", url, engine=None, ahead=1), 1, 3)
        in_turn = make_trainer(
            tmp_path / "d", "llama", owner=plain.models.policy, engine=engine, drawn={
                "engine": "vllm", "importance_cap": 2.0, "vllm": quick(url), "ahead": 1}, lr=5e-3,
        )  # fmt: skip
        assert steps(in_turn, 1, 3) == expected
    with fake_vllm(start) as (fake, url):
        gate, updating = threading.Event(), threading.Event()
        trainer = trained(tmp_path, "e", url, ahead=1)
        run = trainer._update.run

        def update(*arguments: Any) -> None:
            updating.set()
            fake.before = lambda server, number: None
            gate.set()
            run(*arguments)

        def held(server: FakeVLLM, number: int) -> None:
            if number >= 12:
                assert gate.wait(30)

        trainer._update.run, fake.before = update, held
        found = steps(trainer, 1, 1)  # would not end if the responses of step 2 were waited for
        found += steps(trainer, 2, 3)
        assert updating.is_set() and found == expected


@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_run_goes_on_as_if_it_had_not_been(start: Path, tmp_path: Path, ahead: int) -> None:
    with fake_vllm(start) as (fake, url):
        whole = trained(tmp_path, "a", url, ahead=ahead)
        expected = steps(whole, 1, 4)
        stopped = trained(tmp_path, "b", url, ahead=ahead)
        steps(stopped, 1, 2)
        checkpoint = save_checkpoint(stopped, tmp_path / "checkpoint")
        resumed = trained(tmp_path, "b2", url, ahead=ahead)
        resumed.load_state(checkpoint)
        drawn = 12 * (4 + ahead + 2 + ahead)
        wait_until(lambda: fake.drawn >= drawn)  # what `whole` draws ahead is waited for by nobody
        assert fake.drawn == drawn and steps(resumed, 3, 4) == expected[2:]
        wait_until(lambda: fake.drawn >= drawn + 24)
    assert fake.drawn == drawn + 24  # with a step ahead: steps 4 and 5; step 3 was kept
    assert all(torch.equal(weights(resumed)[n], weight) for n, weight in weights(whole).items())


def test_two_processes_draw_what_one_does(start: Path, tmp_path: Path) -> None:
    with fake_vllm(start) as (_, url):
        alone = trained(tmp_path, "a", url)
        expected = steps(alone, 1, 2)
        owners = [policy("llama") for _ in range(2)]
        engines = [VLLMEngine(owner, quick(url), tmp_path / "w") for owner in owners]

        def work(processes: Processes) -> list[dict[str, float]]:
            settings = {"engine": "vllm", "importance_cap": 2.0, "vllm": quick(url)}
            rank = processes.rank
            trainer = make_trainer(
                tmp_path / f"p{rank}", "llama", owner=owners[rank], engine=engines[rank], drawn=settings, lr=5e-3,
                processes=processes, validation=1,
            )  # fmt: skip
            trainer.validate(0)  # one of them has no prompt
            return steps(trainer, 1, 2)

        for found in run_together(2, work):
            for one, other in zip(found, expected, strict=True):
                assert one == pytest.approx({**other, "processes": 2}, abs=2e-4, rel=1e-3)


def test_what_cannot_be_drawn_is_refused(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"engine=vllm .*importance_cap .* such as 2.0, got null"):
        RolloutConfig(4, engine="vllm")
    with pytest.raises(ConfigError, match=r"rollout.vllm is of engine=vllm, got engine=auto"):
        RolloutConfig(4, vllm=quick("http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=r"rollout.vllm.urls: 'host:8000': url: expected http"):
        VLLMConfig(urls=["host:8000"])
    with pytest.raises(ConfigError, match="each server once"):
        VLLMConfig(urls=["http://a", "http://a/"])
    with pytest.raises(ConfigError, match=r"decoder-only models, and T5For.* take engine=auto"):
        VLLMEngine(policy("t5"), VLLMConfig(), tmp_path)
    monkeypatch.setattr("finegrained_rlhf.rollout.vllm.local.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"vLLM is not installed: `make env-vllm` makes"):
        VLLMEngine(policy("llama"), VLLMConfig(), tmp_path)
    with fake_vllm(start) as (fake, url):
        fake.get = lambda path: (404, {"detail": "Not Found"})  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match=r"has no /weight_info; start it with: VLLM_SERVER_DEV_MODE=1 vllm serve"):
            VLLMEngine(policy("llama"), quick(url), tmp_path)
    with fake_vllm(start) as (fake, url):
        fake.weights_only = True
        engine = VLLMEngine(policy("llama"), quick(url), tmp_path)
        with pytest.raises(RemoteError, match=r"generate: the request was refused: status 404"):
            drawn(engine)
    with pytest.raises(ConfigError, match=r"rollout.engine=own: no decoder of ours follows"):
        make_engine(_hooked(), "own")


def _hooked() -> Policy:
    owner = policy("llama")
    owner.model.model.layers[0].register_forward_hook(lambda *given: None)
    return owner


def test_the_wire_form_is_vllms_own(start: Path) -> None:
    """What vLLM's classes write is read, and the server of these tests answers in the same form."""
    (exchange,) = json.loads(WIRE.read_text())["generate"]
    (choice,) = exchange["answer"]["choices"]
    found = _read(exchange["answer"], "default")
    assert (found.ids, found.logprobs, found.reason) == (choice["token_ids"], [-0.25, -1.5], "stop")
    status, answer = FakeVLLM(start).post("/inference/v1/generate", exchange["body"])
    assert status == 200 and shape(answer["choices"]) == shape(exchange["answer"]["choices"])
