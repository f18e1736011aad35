"""Processes that share models out load them one after the other: host memory never holds two whole sets."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from loading_toy import save_models
from script_runs import run_in_processes

from finegrained_rlhf.core.files import read_json

TOY = str(Path(__file__).parents[1] / "helpers/loading_toy.py")
SETS = {"sft": 1, "ppo": 2}
"""Models that a process loads whole: PPO the policy and its reference."""


def whole_at(seen: list[tuple[float, float]], whole: float) -> list[tuple[float, float]]:
    """From when to when a process held at least nine tenths of whole models, in seconds: the first and last look."""
    runs = itertools.groupby(seen, lambda look: look[1] >= 0.9 * whole)
    spans = [[at for at, _ in looks] for is_whole, looks in runs if is_whole]
    return [(times[0], times[-1]) for times in spans]


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("kind", ["sft", pytest.param("ppo", marks=pytest.mark.slow)])
def test_whole_models_of_two_processes_meet_where_none_waits(tmp_path: Path, kind: str, in_turn: bool) -> None:
    """Taking turns they never do. Without, the same measure sees both."""
    whole = SETS[kind] * save_models(tmp_path)
    done = run_in_processes(2, TOY, str(tmp_path), kind, json.dumps(in_turn))
    assert done.returncode == 0, done.stderr
    seen = [read_json(tmp_path / f"memory_{rank}.json") for rank in (0, 1)]
    for one in seen:  # rows of half the matrices stay, and the tables
        assert 0.45 * whole < one[-1][1] < 0.7 * whole
    first, second = (whole_at(one, whole) for one in seen)
    assert first and second
    together = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in first for b in second)
    assert together == 0.0 if in_turn else together > 0.0
