"""What processes share out among them: the same parameters as one process alone, and checkpoints for any number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from properties import given, st
from runtime_toy import rows
from safetensors import safe_open
from safetensors.torch import load_file
from script_runs import Done, run_in_processes, run_script
from seldom import seldom
from torch import nn

from finegrained_rlhf.core.errors import CheckpointError, ConfigError
from finegrained_rlhf.runtime.loop.checkpoints import read_checkpoint
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.sharding import ownership

TOY = str(Path(__file__).parents[1] / "helpers/runtime_toy.py")
NAMES = ("model.0.weight", "model.0.bias", "model.2.weight", "model.2.bias", "unused.weight", "unused.bias")


def run(output: Path, processes: int = 1, **options: object) -> Done:
    words = json.dumps({"output": str(output), **options})
    return run_script(TOY, words) if processes == 1 else run_in_processes(processes, TOY, words)


def ended(output: Path) -> dict[str, torch.Tensor]:
    """The parameters of the last checkpoint, and its moments, from however many files."""
    checkpoint = output / "checkpoints/step_12"
    found = load_file(checkpoint / "policy/model.safetensors")
    for file in checkpoint.glob("optimizer*.safetensors"):
        found |= load_file(file)
    return found


def assert_alike(one: Path, other: Path) -> None:
    theirs = ended(other)
    assert ended(one).keys() == theirs.keys()
    for name, tensor in ended(one).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.fixture
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, object], Path]:
    """Options, and the run of one process with them. Of two rows the third process gets none."""
    output = tmp_path / "alone"
    assert run(output, **request.param).returncode == 0
    return request.param, output


@pytest.mark.parametrize(
    ("alone", "processes"),
    [
        ({"rows": 2}, 3),
        ({"adafactor": True}, 3),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in (({}, 3), ({"rows": 2}, 2), ({"adafactor": True}, 2))),
    ],
    indirect=["alone"],
)
def test_the_same_parameters_as_one_process(
    alone: tuple[dict[str, object], Path], tmp_path: Path, processes: int
) -> None:
    """With different numbers of backward passes, and with a parameter that no loss depends on."""
    (options, one), several = alone, tmp_path / "several"
    done = run(several, processes, sharding="gradients", **options)
    assert done.returncode == 0, done.stderr
    assert_alike(one, several)
    begun = load_file(one / "checkpoints/step_0/policy/model.safetensors")
    moved = load_file(several / "checkpoints/step_12/policy/model.safetensors")
    assert max(float((moved[name] - begun[name]).abs().max()) for name in begun) > 1e-2
    norms = [[line["loss"] for line in rows(run / "metrics.jsonl")] for run in (one, several)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_each_process_keeps_and_writes_its_own_moments(tmp_path: Path) -> None:
    assert run(tmp_path, 3, sharding="gradients").returncode == 0
    checkpoint = tmp_path / "checkpoints/step_12"
    held = []
    for number in (1, 2, 3):
        with safe_open(checkpoint / f"optimizer.{number}-of-3.safetensors", "pt") as file:
            held.append({key.split("/", 1)[1] for key in list(file.keys())})
    assert len(held[0]) < len(NAMES) and set.union(*held) == set(NAMES) and sum(map(len, held)) == len(NAMES)
    read_checkpoint(checkpoint)
    assert not (checkpoint / "optimizer.safetensors").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    seldom(
        [((2, "gradients"), (3, "gradients")), ((3, "gradients"), (1, "none")), ((1, "none"), (2, "gradients"))],
        [((2, "gradients"), (3, "gradients"))],
    ),
)
def test_another_number_of_processes_resumes(tmp_path: Path, before: tuple[int, str], after: tuple[int, str]) -> None:
    """Killed in step 10: the checkpoint of step 8 is in place since the validation of step 9."""
    assert run(tmp_path / "whole").returncode == 0
    (count, sharding), output = before, tmp_path / "killed"
    killed = run(output, count, sharding=sharding, fail_at=[10, "kill"])
    assert killed.returncode != 0 and sorted(p.name for p in (output / "checkpoints").glob("step_*")) == [
        "step_0",
        "step_4",
        "step_8",
    ]
    count, sharding = after
    done = run(output, count, sharding=sharding)
    assert done.returncode == 0, done.stderr
    assert "training: step 9 of 12" in done.stderr, "it did not go on behind the checkpoint"
    assert_alike(tmp_path / "whole", output)
    assert [line["step"] for line in rows(output / "metrics.jsonl")] == list(range(1, 13))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    assert run(tmp_path, 2, sharding="gradients").returncode == 0
    checkpoint = tmp_path / "checkpoints/step_12"
    (checkpoint / "optimizer.1-of-2.safetensors").unlink()
    optimizer = OptimizerConfig().build([("a", nn.Parameter(torch.ones(2)))], 1)
    with pytest.raises(CheckpointError, match=r"only 1 of the 2 files optimizer\.\*-of-\*\.safetensors"):
        optimizer.load(checkpoint)
    with pytest.raises(CheckpointError, match=r"optimizer\.1-of-2\.safetensors is missing"):
        read_checkpoint(checkpoint)


def test_an_unknown_sharding_is_refused() -> None:
    with pytest.raises(ConfigError, match="sharding: expected one of none, gradients, full, got 'zero'$"):
        ProcessConfig(sharding="zero")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got 'optimizer'; give gradients, which shares out the moments too$"):
        ProcessConfig(sharding="optimizer")  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 5))
def test_owners_are_contiguous_and_their_largest_share_is_as_small_as_can_be(sizes: list[int], count: int) -> None:
    found = ownership.owners(sizes, count)
    assert len(found) == len(sizes) and found == sorted(found) and set(found) <= set(range(count))

    def largest(cuts: tuple[int, ...]) -> int:
        edges = (0, *cuts, len(sizes))
        return max(sum(sizes[start:end]) for start, end in zip(edges, edges[1:], strict=False))

    def ways(left: int, start: int) -> list[tuple[int, ...]]:
        if left == 0:
            return [()]
        return [(cut, *rest) for cut in range(start, len(sizes) + 1) for rest in ways(left - 1, cut)]

    shares = [sum(size for size, owner in zip(sizes, found, strict=True) if owner == rank) for rank in range(count)]
    assert max(shares) == min(largest(cuts) for cuts in ways(count - 1, 0))


def test_buckets_hold_one_owner_and_one_dtype_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "BUCKET_ELEMENTS", 6)
    sizes = [(2, torch.float32), (9, torch.float32), (3, torch.float32), (3, torch.bfloat16), (2, torch.bfloat16)]
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in sizes]
    made = ownership.buckets(parameters, [0, 0, 0, 0, 1])
    numbers = [[next(n for n, p in enumerate(parameters) if p is q) for q in bucket.parameters] for bucket in made]
    assert numbers == [[4], [3], [2], [1], [0]] and [bucket.owner for bucket in made] == [1, 0, 0, 0, 0]
    assert [len(bucket.parameters) for bucket in ownership.buckets(parameters[2:], None)] == [2, 1]
    flat = made[2].flat([torch.arange(3.0)])
    assert [part.tolist() for part in made[2].cut(flat)] == [[0.0, 1.0, 2.0]]
    assert made[3].gradients().tolist() == [0.0] * 9
