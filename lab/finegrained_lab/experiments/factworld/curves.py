"""Validation curves of PPO runs: one a seed, their mean and range, z-normalised where asked for.

Reads `eval.jsonl`, in which FactWorld's oracle has measured every validation beside the reward. Draws nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.factworld.report import RATES
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

COMPONENTS = ("relevance", "factuality", "completeness")
Curve = dict[int, float]
"""Episodes so far → value."""
Measure = Callable[[Mapping[str, Any]], float]


def validations(directory: Path) -> dict[int, dict[str, Any]]:
    """The validations of a PPO run by the episodes that training had drawn before.

    Raises:
        DataError: the run has none, or none that the oracle measured.
    """
    run = RunDirectory(directory)
    steps, rows = read_jsonl(run.metrics), read_jsonl(run.eval)
    if not steps or not rows:
        raise DataError("a run that has been trained and validated was expected", file=directory)
    missing = [name for name in RATES if name not in rows[0]]
    if missing:
        raise DataError("missing: train with FactWorld's oracle as monitor", file=run.eval, record=0, field=missing[0])
    return {round(row["step"] * float(steps[0]["episodes_per_step"])): row for row in rows}


def last_step(run: RunDirectory) -> dict[str, Any]:
    """The metrics of a run's last training step."""
    return read_jsonl(run.metrics)[-1]


def curve(rows: Mapping[int, Mapping[str, Any]], measure: Measure) -> Curve:
    """One measurement of each validation."""
    return {episodes: measure(row) for episodes, row in rows.items()}


def reward_of(component: str) -> Measure:
    """A component's reward: the sum over an answer, unweighted, mean over answers."""
    return lambda row: float(row[f"reward/{component}/raw"])


def reward_per_segment(component: str) -> Measure:
    """A component's mean reward over all segments; 0 where no answer has any."""

    def measure(row: Mapping[str, Any]) -> float:
        segments = float(row[f"segments/{component}"])
        return float(row[f"reward/{component}/raw"]) / segments if segments else 0.0

    return measure


def z_normalised(curve: Curve) -> Curve:
    """(x − mean) / standard deviation over the points of one curve; zeros for a curve that does not move."""
    mean, spread = statistics.fmean(curve.values()), statistics.pstdev(curve.values())
    return {episodes: (value - mean) / spread if spread else 0.0 for episodes, value in curve.items()}


def mean_height(curve: Curve) -> float:
    """Mean of a curve over its episodes (trapezoids): what a user who stops at a random time finds."""
    points = sorted(curve)
    if len(points) < 2:
        return statistics.fmean(curve.values())
    area = sum((b - a) * (curve[a] + curve[b]) / 2 for a, b in zip(points, points[1:], strict=False))
    return area / (points[-1] - points[0])


def first_below(curve: Curve, level: float) -> int | None:
    """Episodes at the first point at or below `level`; None where there is none."""
    return next((episodes for episodes in sorted(curve) if curve[episodes] <= level), None)
