"""What a doctor's check is given and what it says."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.records import Prompt, Rollout, SegmentScores
from finegrained_rlhf.preflight.memory.plan import Plan
from finegrained_rlhf.rewards.protocol import Scorer
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

Status = Literal["pass", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        status: `pass`; `warn` (the run works, but look at this); `fail`; `skipped` (not asked for, or what it needs
            failed).
        measured: what was found, in words and numbers.
        mend: what to change and which key; empty where nothing has to change.
        check: name of the check; filled in by who runs it.
    """

    status: Status
    measured: str
    mend: str = ""
    check: str = ""


@dataclass(frozen=True)
class Problem:
    """Why a part of a configuration could not be built.

    Attributes:
        measured: what is wrong.
        mend: what to change and which key.
    """

    measured: str
    mend: str


@dataclass
class Case:
    """A run's configuration, and what its checks leave for later ones.

    Attributes:
        keys: the resolved configuration without the keys that have no value.
        parts: what could be built of it, by key (`policy`, `value`, `tracking`, …).
        scorers: reward components that could be built, by name.
        problems: what could not.
        processes: this process; its device and precision are the run's.
        job: the run; None where the configuration does not bind.
        sample: the run cut down to one training step on a few prompts, with a run directory of its own.
        exact: `sample` in fp32, for comparisons; `sample` itself where that is fp32 already.
        launch: trains the step of `exact` with two processes and returns its metrics; None: not asked for.
        hint: added to the mend of a model or file that is missing.
        files: of the run directory: size and time of last change by path (left by `output_dir`).
        prompts: by key of their file, uncut (left by `prompts`).
        plan: of the whole run's memory (left by `memory`).
        trainer: of `sample` (left by `responses`).
        rollout: of `sample`'s step (left by `responses`).
        scores: of that rollout, by component (left by `rewards`).
        metrics: of one training step of `sample` (left by `training step`).
    """

    keys: Mapping[str, Any]
    parts: Mapping[str, Any] = field(default_factory=dict)
    scorers: Mapping[str, Scorer] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    processes: Processes = field(default_factory=Processes)
    job: TrainPPO | None = None
    sample: TrainPPO | None = None
    exact: TrainPPO | None = None
    launch: Callable[[], Mapping[str, float]] | None = None
    hint: str = ""
    files: dict[Path, tuple[int, int]] = field(default_factory=dict)
    prompts: dict[str, list[Prompt]] = field(default_factory=dict)
    plan: Plan | None = None
    trainer: PPOTrainer | None = None
    rollout: Rollout | None = None
    scores: dict[str, SegmentScores] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def explain(error: Exception) -> str:
    """A user's error in its own words; any other with its type and the line that raised it."""
    if isinstance(error, FineGrainedError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    reason = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}{f': {reason}' if reason else ''}{where}"
