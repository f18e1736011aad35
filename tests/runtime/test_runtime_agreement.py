"""Processes that hold different parameters are stopped before they train or save anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import make_trainer, run_together
from runtime_toy import Toy

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import check_agreement, parameter_hash, run_loop
from finegrained_rlhf.runtime.loop.types import LoopConfig
from finegrained_rlhf.runtime.processes import Processes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_a_hash_sees_every_bit(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).reshape(4, 6).to(dtype)
    whole = int(parameter_hash(tensor))
    assert int(parameter_hash(tensor.clone())) == whole
    changed = [tensor.clone() for _ in range(4)]
    changed[0][3, 5] += 1
    changed[1][0, 0], changed[1][0, 1] = tensor[0, 1], tensor[0, 0]  # swapped
    changed[2][0, 0] = -1
    changed[3] = tensor.flip(0)
    assert len({whole, *(int(parameter_hash(other)) for other in changed)}) == 5


def test_a_hash_sees_what_a_plain_weighted_sum_would_lose() -> None:
    """2^20 weights times 4: every exponent moves by 2, and 2^24 · Σ(2i + 1) is 0 modulo 2^64."""
    weights = torch.rand(1024, 1024, generator=torch.Generator().manual_seed(0))
    assert int(parameter_hash(weights)) != int(parameter_hash(4 * weights))


def test_a_hash_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000)
    whole = int(parameter_hash(tensor))
    monkeypatch.setattr("finegrained_rlhf.runtime.loop.run._CHUNK", 7)
    assert int(parameter_hash(tensor)) == whole


def test_the_first_parameter_that_differs_is_named_in_every_process() -> None:
    def work(processes: Processes) -> str:
        named = {"a": torch.ones(3), "b": torch.ones(2), "c": torch.zeros(1)}
        check_agreement(named, processes, 4)
        if processes.rank == 2:
            named["b"][1] = 1 + 1e-6
        with pytest.raises(ConsistencyError) as refused:
            check_agreement(named, processes, 5)
        return str(refused.value)

    told = run_together(3, work)
    assert len(set(told)) == 1
    assert told[0].startswith(
        "step 5: process 2 does not hold the trained parameters of process 0 (1 of 3 differ, first b)"
    )


def test_a_process_with_another_model_is_named() -> None:
    def work(processes: Processes) -> None:
        named = {"a": torch.ones(3), **({"b": torch.ones(2)} if processes.rank else {})}
        check_agreement(named, processes, 0)

    with pytest.raises(ConsistencyError, match="process 1 does not hold"):
        run_together(2, work)


@pytest.mark.parametrize("when", ["start", "resume"])
def test_the_loop_refuses_before_anything_is_trained(tmp_path: Path, when: str) -> None:
    """Two threads for two processes; the second one starts from, or comes back with, other weights."""
    if when == "resume":
        alone = Toy(Processes())
        run_loop(alone, RunDirectory(tmp_path / "0"), LoopConfig(total_steps=1, checkpoint_every=1), Processes())

    def work(processes: Processes) -> list[int]:
        toy, steps = Toy(processes), []
        processes.broadcast_object = lambda value: processes.gather_objects([value])[0]  # type: ignore[method-assign]

        def move(*_: Any) -> None:
            with torch.no_grad():
                toy.model[0].weight[0, 0] += float(processes.rank)

        if when == "start":
            move()
        toy.load_state = move  # type: ignore[method-assign]
        toy.train_step = lambda step: steps.append(step) or {}  # type: ignore[method-assign,func-returns-value]
        with pytest.raises(ConsistencyError, match="process 1 does not hold"):
            run_loop(toy, RunDirectory(tmp_path / "0"), LoopConfig(total_steps=3), processes)
        return steps

    assert run_together(2, work) == [[], []]


def test_ppo_shows_the_guard_policy_and_value_model(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    parts = {name.split(".")[0] for name in trainer.optimizer.named}
    assert parts == {"policy", "value"}
