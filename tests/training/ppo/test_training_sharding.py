"""Weights, gradients and moments in shards: PPO ends with the parameters of one process that holds everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from script_runs import Done, run_in_processes, run_script
from sharding_toy import CASES

TOY = str(Path(__file__).parents[2] / "helpers/sharding_toy.py")

SLOW = pytest.mark.slow
QUICK = ["t5_of_mini_batches", "t5_adapters", "llama"]


def one_of(cases: list[str], name: str) -> list[str]:
    """One case where a few stand for all."""
    return [name] if cases == QUICK else cases


def run(output: Path, processes: int, sharding: str, cases: list[str], **options: object) -> Done:
    words = json.dumps({"output": str(output), "sharding": sharding, "cases": cases, **options})
    done = run_script(TOY, words) if processes == 1 else run_in_processes(processes, TOY, words)
    assert done.returncode == 0, done.stderr
    return done


def told(output: Path, rank: int = 0) -> dict[str, Any]:
    """What a process says of each case."""
    found: dict[str, Any] = json.loads((output / f"told_{rank}.json").read_text())
    return found


def saved(output: Path, case: str) -> dict[str, torch.Tensor]:
    """The policy, the value model, adapters and moments that a run has saved."""
    files = sorted((output / case).rglob("*.safetensors"))
    moments = [file for file in files if file.name.startswith("optimizer")]
    found = {f"{file.name}/{n}": t for file in files if file not in moments for n, t in load_file(file).items()}
    for file in moments:  # in shards: parts along the first dimension, in the order of the processes
        for name, tensor in load_file(file).items():
            before = found.get(name)
            whole = before is None or tensor.dim() == 0
            found[name] = tensor if whole or before is None else torch.cat([before, tensor])
    return found


def assert_alike(one: Path, other: Path, case: str, tolerance: float = 1e-5) -> None:
    ours, theirs = saved(one, case), saved(other, case)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        allowed = tolerance * (10 if name.startswith("exp_avg") else 1)  # moments keep every rounding of the gradients
        torch.testing.assert_close(tensor, theirs[name], rtol=allowed, atol=allowed, msg=f"{case}: {name}")


@pytest.fixture(scope="module", params=[QUICK, pytest.param(list(CASES), marks=SLOW)], ids=["quick", "all"])
def cases(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


@pytest.fixture(scope="module")
def alone(cases: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that holds everything."""
    output = tmp_path_factory.mktemp("alone")
    run(output, 1, "none", cases)
    return output


@pytest.fixture(scope="module")
def full(cases: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes that hold everything in shards."""
    output = tmp_path_factory.mktemp("full")
    run(output, 2, "full", cases)
    return output


def test_two_processes_in_shards_end_as_one(cases: list[str], alone: Path, full: Path) -> None:
    for case in cases:
        assert_alike(alone, full, case)
        metrics = told(alone)[case]["metrics"]
        assert told(full)[case]["metrics"] == pytest.approx({**metrics, "processes": 2}, rel=1e-4, abs=1e-4), case
        assert told(full)[case]["score"] == pytest.approx(told(alone)[case]["score"], abs=1e-5), case


TABLES = ("shared.", "embed_tokens.", "wte.", "lm_head.")


def test_matrices_and_tables_are_in_shards_and_the_rest_has_one_owner(cases: list[str], full: Path) -> None:
    for case in cases:
        here, there = told(full, 0)[case], told(full, 1)[case]
        of_policy = sum(size for name, size in here["in_shards"].items() if name.startswith("policy."))
        assert (of_policy == 0) == ("adapters" in case), case  # their base is in shards, but nothing of it is trained
        assert here["trained"] / 4 < sum(here["in_shards"].values()) < here["trained"], case
        assert any(table in name for table in TABLES for name in here["in_shards"]), case
        assert here["updated_here"] + there["updated_here"] == here["trained"]


@pytest.mark.slow
def test_three_processes_some_without_work_end_as_one(cases: list[str], alone: Path, tmp_path: Path) -> None:
    chosen = one_of(cases, "t5_of_mini_batches")
    run(tmp_path, 3, "full", chosen)
    for case in chosen:
        assert_alike(alone, tmp_path, case)


@SLOW
@pytest.mark.parametrize("sharding", ["full", "gradients"])
def test_two_groups_of_two_processes_end_as_one(cases: list[str], alone: Path, tmp_path: Path, sharding: str) -> None:
    """Each group has all matrices; what a group's copy adds is counted once, in the norm and in a checkpoint."""
    chosen = one_of(cases, "t5_of_mini_batches")
    run(tmp_path / "four", 4, sharding, chosen, shard_group=2)
    run(tmp_path / "resumed", 1, "none", chosen, resume=str(tmp_path / "four"))
    run(tmp_path / "again", 4, sharding, chosen, shard_group=2, resume=str(alone))
    run(tmp_path / "one", 1, "none", chosen, resume=str(alone))
    for case in chosen:
        assert_alike(alone, tmp_path / "four", case)
        assert_alike(tmp_path / "one", tmp_path / "again", case)
        assert_alike(tmp_path / "one", tmp_path / "resumed", case)
        told_by = [told(tmp_path / "four", rank)[case] for rank in range(4)]
        metrics = told(alone)[case]["metrics"]
        assert told_by[0]["metrics"] == pytest.approx({**metrics, "processes": 4}, rel=1e-4, abs=1e-4), case
        if "adapters" not in case:  # of which nothing that is trained is in shards
            assert sum(one["updated_here"] for one in told_by) > told_by[0]["trained"], case


@pytest.mark.parametrize(
    ("processes", "sharding"),
    [
        (1, "none"),
        pytest.param(3, "full", marks=SLOW),
        pytest.param(2, "gradients", marks=SLOW),
    ],
)
def test_another_number_of_processes_and_another_sharding_resume(
    cases: list[str], alone: Path, full: Path, tmp_path: Path, processes: int, sharding: str
) -> None:
    chosen = one_of(cases, "llama")
    run(tmp_path / "one", 1, "none", chosen, resume=str(alone))
    run(tmp_path / "other", processes, sharding, chosen, resume=str(full))
    for case in chosen:
        assert_alike(tmp_path / "one", tmp_path / "other", case)


@pytest.mark.parametrize("processes", [pytest.param(3, marks=SLOW), 2])
def test_gradients_in_shards(cases: list[str], alone: Path, tmp_path: Path, processes: int) -> None:
    """What is trained of the matrices of layers is FSDP2's; adapters, and what lies outside layers, have owners."""
    chosen = one_of(cases, "t5_of_mini_batches")
    run(tmp_path, processes, "gradients", chosen)
    for case in chosen:
        assert_alike(alone, tmp_path, case)
        here = told(tmp_path)[case]
        assert any(name.startswith("policy.") for name in here["in_shards"]) != ("adapters" in case), case
        assert not any(table in name for table in TABLES for name in here["in_shards"]), case
        assert sum(told(tmp_path, rank)[case]["updated_here"] for rank in range(processes)) == here["trained"]


@SLOW
def test_in_bf16_the_gathered_matrices_are_those_of_autocast(tmp_path: Path) -> None:
    """Rounded once to bf16 they are what autocast makes of them at every use: the same sampled tokens, and parameters
    as near as two processes without shards come."""
    cases = ["t5", "t5_adapters", "llama"]
    for name, sharding in (("none", "none"), ("full", "full")):
        run(tmp_path / name, 2, sharding, cases, precision="bf16")
    for case in cases:
        plain, sharded = told(tmp_path / "none")[case], told(tmp_path / "full")[case]
        for name in ("reward/total", "kl", "response_length"):
            assert sharded["metrics"][name] == pytest.approx(plain["metrics"][name], abs=1e-3), (case, name)
        assert_alike(tmp_path / "none", tmp_path / "full", case, tolerance=2e-3)
