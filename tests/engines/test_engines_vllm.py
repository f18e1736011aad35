"""vLLM itself as rollout engine (`make test-vllm`), by servers on this machine's CPU and in this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from ppo_job_toy import job
from ppo_toy import WordScorer, make_trainer
from rl_toy import prompts, sharpen, tokenizer
from safetensors.torch import load_file
from script_runs import lines_in, rows, run_again_after_a_kill, run_in_two_processes
from servers import free_port
from vllm_toy import WIRE, quick, shape

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.records import Greedy, Rollout, Sample
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.models.tiny import TinyLlamaConfig
from finegrained_rlhf.models.tiny_networks import build_llama
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rollout import VLLMConfig, make_engine
from finegrained_rlhf.rollout.vllm.engine import VLLMEngine
from finegrained_rlhf.runtime.processes import Processes

TOY = str(Path(__file__).parents[1] / "helpers/ppo_job_toy.py")
DECODINGS = [Greedy(), Sample(3, temperature=0.8, top_k=9)]
STARTS_IN_S = 600.0
_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
_CPU |= {"TORCHDYNAMO_DISABLE": "1"}  # the sampler would be compiled by g++ at the first request


class Server:
    """A vLLM server of a model, on one port however often it is started.

    Args:
        model: directory.
        scratch: where its log goes.
    """

    def __init__(self, model: Path, scratch: Path) -> None:
        self.model, self.log, self.port = model, scratch / "vllm.log", free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and do not wait."""
        module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enable-scale-out", "--enforce-eager"]
        lora = ["--enable-lora", "--max-lora-rank", "16", "--generation-config", "vllm"]
        rest = ["--dtype", "float32", "--max-model-len", "128", "--host", "127.0.0.1", "--port", str(self.port)]
        allowed = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        environment = {**os.environ, **_CPU, **allowed}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*module, "--model", str(self.model), *lora, *rest],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it answers."""
        until = time.monotonic() + STARTS_IN_S
        while time.monotonic() < until:
            assert self.process is not None and self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-3000:])

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it with all its processes."""
        if self.process is not None:
            os.killpg(self.process.pid, how)
            self.process.wait()


def llama(seed: int = 0) -> Policy:
    """Attention of vLLM on a CPU wants heads of 32."""
    sizes = TinyLlamaConfig(64, 96, num_heads=2, num_key_value_heads=1, max_length=128, tied=False)
    return CausalPolicy(sharpen(build_llama(tokenizer("llama"), sizes, seed), seed), tokenizer("llama"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    scratch = tmp_path_factory.mktemp("server")
    save_policy(llama(seed=9), scratch / "model")
    started = Server(scratch / "model", scratch)
    started.start()
    try:
        started.wait()
        yield started
    finally:
        started.kill()


def config(server: Server, **settings: Any) -> VLLMConfig:
    return quick(server.url, **{"timeout_s": 120.0, "budget_s": STARTS_IN_S, **settings})


def drawn(engine: VLLMEngine, limit: int = 24, count: int = 4) -> Rollout:
    engine.refresh(Processes())
    return engine.decode(engine.encode(prompts("llama", count)), DECODINGS, max_new_tokens=limit, seed=3, step=1)


def assert_own(owner: Policy, rollout: Rollout) -> None:
    """Greedy tokens are those of our own decoder; log-probabilities those of the update's function."""
    own = make_engine(owner, "own")
    expected = own.decode(own.encode(rollout.prompts), [Greedy()], max_new_tokens=rollout.response_ids.shape[1])
    chosen = torch.nonzero(rollout.decoding_index == 0).flatten().tolist()
    for row, tokens in zip(chosen, expected.response_ids, strict=True):
        length = int(rollout.lengths()[row])
        assert rollout.response_ids[row, :length].tolist() == tokens[:length].tolist()
    memory = owner.encode(rollout.prompts)
    with torch.no_grad():
        logprobs = owner.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask).logprobs
    gap = float((rollout.logprobs - logprobs).abs().max())
    print(f"largest gap {gap:.1e}")
    assert gap < 1e-4


def moved(owner: Policy, seed: int = 1) -> Policy:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in owner.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return owner


def same(a: Rollout, b: Rollout) -> bool:
    return torch.equal(a.response_ids, b.response_ids) and bool((a.logprobs - b.logprobs).abs().max() < 1e-4)


def test_a_server_draws_what_the_policy_would(server: Server, tmp_path: Path) -> None:
    owner = llama()
    engine = VLLMEngine(owner, config(server), tmp_path)
    first = drawn(engine)
    assert_own(owner, first)
    assert same(first, drawn(engine)) and len({tuple(row.tolist()) for row in first.response_ids[1:4]}) > 1
    assert_own(moved(owner), drawn(engine))


def test_the_server_speaks_as_its_classes_say(server: Server, tmp_path: Path) -> None:
    recorded = json.loads(WIRE.read_text())
    for exchange in recorded["generate"]:
        answer = httpx.post(f"{server.url}/inference/v1/generate", json=exchange["body"], timeout=60).json()
        assert shape(answer["choices"]) == shape(exchange["answer"]["choices"])


def test_adapters_go_over_as_adapters(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_policy(llama(), tmp_path / "base")
    owner = open_policy(tmp_path / "base", lora=LoraConfig(rank=4))
    with torch.no_grad():
        for name, parameter in owner.model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.linspace(-0.3, 0.3, parameter.numel()).view_as(parameter))
    engine = VLLMEngine(owner, config(server), tmp_path / "w")
    assert_own(owner, drawn(engine))
    assert_own(moved(owner), drawn(engine))
    names = {model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]}
    assert engine._weights.adapter in names and len(names) == 2 and not caplog.text


def test_a_killed_server_costs_time_and_no_response(server: Server, tmp_path: Path) -> None:
    """kill -9 in mid-rollout; it comes back with the weights that it was started with."""
    owner = llama()
    engine = VLLMEngine(owner, config(server), tmp_path)
    expected = drawn(engine, limit=64, count=4)

    def again() -> None:
        time.sleep(0.3)
        server.kill()
        server.start()

    trouble = threading.Thread(target=again)
    engine.refresh(Processes())
    memory = engine.encode(prompts("llama", 4))
    trouble.start()
    found = engine.decode(memory, DECODINGS, max_new_tokens=64, seed=3, step=1)
    trouble.join()
    server.wait()
    assert same(found, expected)
    assert engine.places[0].version() == engine._weights.version


def curve(trainer: Any, steps: int) -> list[float]:
    return [trainer.train_step(step)["reward/total"] for step in range(1, steps + 1)]


def test_a_run_learns_as_it_does_with_our_own_engine(server: Server, tmp_path: Path) -> None:
    """Mean rewards of the last steps; the noise is that between seeds of our own engine."""
    sizes: dict[str, Any] = {"prompts_per_step": 8, "samples": 4, "max_new_tokens": 16, "lr": 3e-3, "epochs": 2}
    sizes |= {"scorers": {"words": WordScorer("red")}, "training_prompts": 16}
    steps, last, learnt = 24, 8, dict[str, list[float]]()
    for kind, seeds in (("own", (1, 2, 3)), ("vllm", (1, 2))):
        for seed in seeds:
            owner, drawn_by = llama(), {"importance_cap": 2.0}
            engine: Any = make_engine(owner, "own")
            if kind == "vllm":
                engine = VLLMEngine(owner, config(server), tmp_path / f"w{seed}")
                drawn_by |= {"engine": "vllm", "vllm": config(server)}
            path = tmp_path / f"{kind}{seed}"
            trainer = make_trainer(path, "llama", owner=owner, engine=engine, drawn=drawn_by, seed=seed, **sizes)
            rewards = curve(trainer, steps)
            learnt.setdefault(kind, []).append(sum(rewards[-last:]) / last - sum(rewards[:last]) / last)
    print(learnt)
    own, other = (torch.tensor(learnt[kind]) for kind in ("own", "vllm"))
    noise = max(float(own.std()), 0.05)
    assert min(float(own.min()), float(other.min())) > 1  # all learn; most words are worth 0
    assert abs(float(other.mean() - own.mean())) < 3 * noise


@pytest.fixture
def run_keys(server: Server, tmp_path: Path) -> dict[str, Any]:
    save_policy(llama(), tmp_path / "model")
    write_jsonl(tmp_path / "data.jsonl", [{"id": str(n), "text": "red blue green"[: 3 + n]} for n in range(5)])
    servers = {"urls": [server.url], "budget_s": STARTS_IN_S}
    drawn_by = {"engine": "vllm", "importance_cap": 2.0, "vllm": servers}
    return {"model": str(tmp_path / "model"), "data": str(tmp_path / "data.jsonl"), **drawn_by}


def close(a: Path, b: Path, atol: float) -> None:
    ours, other = (load_file(path / "policy/model.safetensors") for path in (a, b))
    for name, weight in ours.items():
        torch.testing.assert_close(weight, other[name], atol=atol, rtol=0)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_killed_run_goes_on_as_if_it_had_not_been(run_keys: dict[str, Any], tmp_path: Path, ahead: int) -> None:
    keys = {**run_keys, "steps": 6, "ahead": ahead}
    job(**json.loads(json.dumps(keys)), output=str(tmp_path / "whole")).run()
    words = json.dumps({**keys, "output": str(tmp_path / "killed")})
    run_again_after_a_kill(TOY, words, when=lambda: lines_in(tmp_path / "killed/metrics.jsonl") > 2)
    whole, killed = (rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "killed"))
    assert [row["step"] for row in killed] == [row["step"] for row in whole]
    for one, other in zip(whole, killed, strict=True):
        assert other == pytest.approx(one, abs=1e-4, rel=1e-3)
    close(tmp_path / "whole", tmp_path / "killed", 1e-4)


def test_two_processes_learn_what_one_does(run_keys: dict[str, Any], tmp_path: Path) -> None:
    keys = {**run_keys, "steps": 3}
    job(**json.loads(json.dumps(keys)), output=str(tmp_path / "one")).run()
    done = run_in_two_processes(TOY, json.dumps({**keys, "output": str(tmp_path / "two")}))
    assert done.returncode == 0, done.stderr
    for one, two in zip(*(rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two")), strict=True):
        assert two == pytest.approx({**one, "processes": 2}, abs=2e-4, rel=1e-3)
    close(tmp_path / "one", tmp_path / "two", 1e-4)


def test_in_this_process(tmp_path: Path) -> None:
    """In a process of its own here, which vLLM's engine process ends with."""
    script = f"""
if __name__ == "__main__":
    import sys
    sys.path[:0] = {[*sys.path, str(Path(__file__).parent)]!r}
    from pathlib import Path
    from test_engines_vllm import VLLMConfig, VLLMEngine, Processes, assert_own, drawn, llama, moved
    owner = llama()
    settings = dict(max_model_len=128, enforce_eager=True)
    engine = VLLMEngine(owner, VLLMConfig(options=settings), Path({str(tmp_path)!r}) / "w")
    assert_own(owner, drawn(engine))
    assert_own(moved(owner), drawn(engine))
    print("DRAWN", engine.places[0].version() == engine._weights.version)
"""
    (tmp_path / "run.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py")],
        env={**os.environ, **_CPU}, capture_output=True, text=True, timeout=STARTS_IN_S,
    )  # fmt: skip
    assert "DRAWN True" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


def test_several_processes_cannot_draw_in_theirs(tmp_path: Path) -> None:
    processes = Processes()
    processes.count = 2
    with pytest.raises(ConfigError, match=r"draws here for one process, and there are 2: name servers"):
        VLLMEngine(llama(), VLLMConfig(), tmp_path).refresh(processes)
