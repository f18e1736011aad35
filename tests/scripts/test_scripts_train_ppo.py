"""The shortest real runs of `finegrained train-ppo`: one process and two, killed and resumed, refused."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from script_runs import (
    LAUNCH,
    ROOT,
    Done,
    lines_in,
    rows,
    run_again_after_a_kill,
    run_in_processes,
    run_in_two_processes,
    run_process,
    run_script,
)
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from finegrained_rlhf.core.files import read_jsonl

pytestmark = pytest.mark.scripts


def command(output: Path, *arguments: str) -> list[str]:
    return ["train_ppo", "experiment=smoke", f"output_dir={output}", *arguments]


def weights(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "checkpoints" / f"step_{step}" / "policy" / "model.safetensors")


def test_run_directory(smoke: Path) -> None:
    steps = read_jsonl(smoke / "metrics.jsonl")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert [row["episodes"] for row in steps] == [8, 16, 24, 32]
    for row in steps:
        weighted = [row[f"reward/{name}/weighted"] for name in ("relevance", "factuality", "completeness")]
        assert row["reward/total"] == pytest.approx(sum(weighted), abs=1e-5)
        assert row["alignment"] == 1.0 and row["processes"] == 1
    assert steps[0]["kl"] == pytest.approx(0.0, abs=1e-5) and steps[1]["kl"] != 0
    assert [row["step"] for row in read_jsonl(smoke / "eval.jsonl")] == [0, 2, 4]
    samples = read_jsonl(smoke / "samples" / "step_2.jsonl")
    assert len(samples) == 8 and set(samples[0]) == {
        "id",
        "prompt",
        "sample",
        "response",
        "segments",
        "shares",
        "tokens",
    }
    segment = samples[0]["segments"][0]
    assert set(segment) == {"component", "start", "end", "token", "raw", "normalised", "weighted"}
    assert (smoke / "samples" / "validation_step_0.jsonl").is_file()
    assert segment["weighted"] == pytest.approx(0.3 * segment["raw"])
    by_row = [sum(s["weighted"] for s in sample["segments"]) for sample in samples]
    assert sum(by_row) / 8 == pytest.approx(steps[1]["reward/total"], abs=1e-5)


def test_saved_policy_opens_with_transformers_alone(smoke: Path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(smoke / "policy")
    tokenizer = AutoTokenizer.from_pretrained(smoke / "policy")
    batch = tokenizer("question: What is the color of Gino?", return_tensors="pt")
    assert model.generate(**batch, max_new_tokens=3).shape[0] == 1


@pytest.mark.parametrize("preloaded", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_accelerate_launch_in_two_processes_gives_the_parameters_of_one(
    smoke: Path, smoke_keys: list[str], tmp_path: Path, preloaded: bool
) -> None:
    """As a user types it: `accelerate launch -m finegrained_rlhf train-ppo …`, and with `scripts/train_ppo.py`."""
    _, *arguments = command(tmp_path / "two", "total_steps=3", *smoke_keys)
    entry = ["-m", "finegrained_rlhf", "train-ppo"] if preloaded else [str(ROOT / "scripts/train_ppo.py")]
    finished = run_process(*LAUNCH, *entry, *arguments, preloaded=preloaded)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("our own decoder draws, which follows") == 1
    start, one, two = weights(smoke, 0), weights(smoke, 3), weights(tmp_path / "two", 3)
    assert read_jsonl(tmp_path / "two" / "metrics.jsonl")[-1]["processes"] == 2
    assert max(float((one[key] - start[key]).abs().max()) for key in one) >= 1e-3
    assert max(float((one[key] - two[key]).abs().max()) for key in one) <= 1e-5


def test_a_process_that_stays_alone_waits_as_long_as_it_is_told(smoke_keys: list[str], tmp_path: Path) -> None:
    """`processes.timeout_s` bounds how long the processes of a run wait for each other to start, too."""
    name, *arguments = command(tmp_path / "alone", "processes.timeout_s=0.5", *smoke_keys)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run_script(name, *arguments, environment=meeting, timeout=60)
    assert done.returncode == 2 and not (tmp_path / "alone").exists()
    assert "error: the 2 processes of this run did not meet within 0.5 s" in done.stderr
    assert "Traceback" not in done.stderr


def in_two_nodes(launcher: Callable[[int, str], list[str]], script: str, *arguments: str) -> list[Done]:
    """Start a script as two nodes do that have one process each; `launcher` takes a node's number and a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with ThreadPoolExecutor(2) as nodes:
        starts = [
            nodes.submit(run_process, *launcher(node, port), script, *arguments, preloaded=True) for node in range(2)
        ]
        return [start.result() for start in starts]


def torchrun(*options: str) -> list[str]:
    return ["-m", "torch.distributed.run", *options]


NODES: dict[str, Callable[[int, str], list[str]]] = {
    "torchrun": lambda node, port: torchrun(
        *("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "smoke_1"),
    ),
    "accelerate": lambda node, port: [
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "2", "--machine_rank", str(node)),
        *("--num_processes", "2", "--main_process_ip", "127.0.0.1", "--main_process_port", port),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["one", "torchrun", "accelerate"])
def test_torchrun_and_several_nodes_give_the_parameters_of_one_process(
    smoke: Path, smoke_keys: list[str], tmp_path: Path, nodes: str
) -> None:
    """One node with two processes, and two launchers on this machine that meet as two nodes do."""
    name, *arguments = command(tmp_path / "two", "total_steps=1", *smoke_keys)
    script = str(ROOT / f"scripts/{name}.py")
    if nodes == "one":
        one_node = torchrun("--standalone", "--nnodes", "1", "--nproc-per-node", "2")
        ends = [run_process(*one_node, script, *arguments, preloaded=True)]
    else:
        ends = in_two_nodes(NODES[nodes], script, *arguments)
    assert [end.returncode for end in ends] == [0] * len(ends), ends[-1].stderr
    start, one, two = weights(smoke, 0), weights(smoke, 1), weights(tmp_path / "two", 1)
    assert [row["processes"] for row in read_jsonl(tmp_path / "two" / "metrics.jsonl")] == [2]
    assert max(float((one[key] - start[key]).abs().max()) for key in one) >= 1e-4
    assert max(float((one[key] - two[key]).abs().max()) for key in one) <= 1e-5


@pytest.mark.slow
def test_two_processes_train_the_adapters_of_one(smoke_keys: list[str], tmp_path: Path) -> None:
    """Adapters are drawn anew at the start: with other ones a process would train another model."""
    lora = ["policy=lora", "total_steps=2", "seed=5"]
    for name, start in (("one", run_script), ("two", run_in_two_processes)):
        finished = start(*command(tmp_path / name, *lora, *smoke_keys))
        assert finished.returncode == 0, finished.stderr
    start_weights, one, two = (weights(tmp_path / n, step) for n, step in (("one", 0), ("one", 2), ("two", 2)))
    assert max(float((one[key] - start_weights[key]).abs().max()) for key in one) >= 1e-4
    assert max(float((one[key] - two[key]).abs().max()) for key in one) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["gradients", "full"])
def test_two_processes_with_compiled_blocks_give_the_parameters_of_one(
    smoke: Path, smoke_keys: list[str], tmp_path: Path, sharding: str
) -> None:
    compiled = ["total_steps=1", "processes.compiled=true", f"processes.sharding={sharding}"]
    finished = run_in_two_processes(*command(tmp_path / "two", *compiled, *smoke_keys))
    assert finished.returncode == 0, finished.stderr
    start, one, two = weights(smoke, 0), weights(smoke, 1), weights(tmp_path / "two", 1)
    assert max(float((one[key] - start[key]).abs().max()) for key in one) >= 1e-4
    assert max(float((one[key] - two[key]).abs().max()) for key in one) <= 1e-5


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_algorithm_without_a_value_model(smoke: Path, smoke_keys: list[str], tmp_path: Path, processes: int) -> None:
    """One key chooses it; the experiment's value model is not loaded."""
    gdpo = ["algorithm=gdpo", "algorithm.credit=returns"]
    for name, start in (("one", run_script), ("two", run_in_two_processes))[:processes]:
        finished = start(*command(tmp_path / name, *gdpo, "total_steps=1", *smoke_keys))
        assert finished.returncode == 0, finished.stderr
    moved = [weights(tmp_path / name, 1) for name in ("one", "two")[:processes]]
    assert not list((tmp_path / "one").rglob("value_state.safetensors"))
    assert max(float((moved[0][key] - moved[-1][key]).abs().max()) for key in moved[0]) <= 1e-5
    assert max(float((moved[0][key] - weights(smoke, 0)[key]).abs().max()) for key in moved[0]) >= 1e-3
    assert "explained_variance" not in read_jsonl(tmp_path / "one" / "metrics.jsonl")[-1]
    refused = run_script(*command(tmp_path / "one", "total_steps=2", *smoke_keys))
    assert refused.returncode == 2 and "algorithm._target_" in refused.stderr


@pytest.mark.slow
def test_prompts_that_do_not_divide_by_the_processes(smoke_keys: list[str], tmp_path: Path) -> None:
    uneven = ["total_steps=1", "rollout.prompts_per_step=3", "validate_every=1", "checkpoint_every=1"]
    for name, start in (("one", run_script), ("two", run_in_two_processes)):
        finished = start(*command(tmp_path / name, *uneven, *smoke_keys))
        assert finished.returncode == 0, finished.stderr
    one, two = weights(tmp_path / "one", 1), weights(tmp_path / "two", 1)
    assert max(float((one[key] - two[key]).abs().max()) for key in one) <= 1e-5
    first, second = (read_jsonl(tmp_path / name / "eval.jsonl")[0] for name in ("one", "two"))
    assert first["examples"] == second["examples"] == 5
    assert first["score"] == pytest.approx(second["score"], abs=1e-5)


EXACT_KL = ["ppo.kl.estimator=exact", "ppo.kl.controller=adaptive", "ppo.kl.target=0.1", "ppo.kl.horizon=20"]


@pytest.mark.parametrize("keys", [[], pytest.param(EXACT_KL, marks=pytest.mark.slow)], ids=["sampled KL", "exact KL"])
def test_kill_and_resume_is_bit_identical(smoke: Path, smoke_keys: list[str], tmp_path: Path, keys: list[str]) -> None:
    whole, output = smoke, tmp_path / "killed"
    if keys:
        whole = tmp_path / "whole"
        done = run_script(*command(whole, *smoke_keys, *keys))
        assert done.returncode == 0, done.stderr
    words = command(output, *smoke_keys, *keys)
    run_again_after_a_kill(*words, when=lambda: lines_in(output / "metrics.jsonl") >= 3)
    for step in range(5):
        ours, theirs = weights(output, step), weights(whole, step)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert rows(output / name) == rows(whole / name)
    if keys:
        told = rows(output / "metrics.jsonl")
        assert all(row["kl"] > 0 and row["kl"] != row["log_ratio"] for row in told[1:])
        assert len({row["beta"] for row in told}) == len(told)
    again = run_script(*words)
    assert again.returncode == 0 and "is done" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "keys"), [(2, []), (4, ["processes.shard_group=2"])])
def test_a_kill_of_all_processes_with_everything_in_shards(
    smoke: Path, smoke_keys: list[str], tmp_path: Path, processes: int, keys: list[str]
) -> None:
    """What goes on after it, in as many processes or in one, ends where one process that holds everything does."""
    output, keys = tmp_path / "killed", ["processes.sharding=full", *keys]
    words = command(output, *smoke_keys, *keys)
    killed = run_in_processes(processes, *words, killed_when=lambda: lines_in(output / "metrics.jsonl") >= 2)
    assert killed.returncode == -signal.SIGKILL and lines_in(output / "metrics.jsonl") < 4, killed.stderr
    shutil.copytree(output, tmp_path / "alone")
    done = run_in_processes(processes, *words)
    assert done.returncode == 0 and "resuming from" in done.stderr, done.stderr
    alone = run_script(*command(tmp_path / "alone", *smoke_keys))
    assert alone.returncode == 0 and "resuming from" in alone.stderr, alone.stderr
    for run_dir in (output, tmp_path / "alone"):
        ours, theirs = weights(run_dir, 4), weights(smoke, 4)
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-5, msg=f"{run_dir.name}: {name}")


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("optimizer.lrr=1", "optimizer.lrr"),
        ("+reward.weights.style=1", "reward.weights.style"),
        ("policy.path=nowhere", "nowhere"),
        ("prompt_too_long=refuse max_prompt_tokens=20", "limit is 20"),
    ],
)
def test_refusals_are_one_line(smoke_keys: list[str], tmp_path: Path, argument: str, told: str) -> None:
    finished = run_script(*command(tmp_path / "refused", *smoke_keys, *argument.split()))
    assert finished.returncode != 0
    errors = [line for line in finished.stderr.splitlines() if line.strip()]
    assert len(errors) == 1 and told in errors[0], finished.stderr
    assert not (tmp_path / "refused" / "checkpoints").exists()


def test_numbers_are_finite(smoke: Path) -> None:
    for name in ("metrics.jsonl", "eval.jsonl"):
        for line in (smoke / name).read_text().splitlines():
            assert None not in json.loads(line).values()


@pytest.mark.slow
def test_a_tiny_llama_trains_and_a_resumed_run_is_bit_identical(
    smoke: Path, smoke_keys: list[str], tmp_path: Path
) -> None:
    shared = [key for key in smoke_keys if not key.startswith(("policy.", "value."))]
    llama = smoke / "prepared" / "models" / "llama"
    words = ["policy=tiny_llama", *shared, f"policy.path={llama}", f"value.path={llama}", "total_steps=2"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for output, more in ((whole, []), (resumed, [f"resume={whole}/checkpoints/step_1"])):
        done = run_script(*command(output, *words, *more))
        assert done.returncode == 0, done.stderr
    start, first, last = load_file(llama / "model.safetensors"), weights(whole, 1), weights(whole, 2)
    assert all(torch.equal(tensor, weights(resumed, 2)[name]) for name, tensor in last.items())
    assert any(not torch.equal(first[name], start[name]) for name in start)
    assert any(not torch.equal(first[name], last[name]) for name in last)
    assert AutoModelForCausalLM.from_pretrained(whole / "policy").config.model_type == "llama"
