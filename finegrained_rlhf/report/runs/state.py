"""Where a run stands: at work, done, stopped early and why, resumable, or damaged.

Loads no model and verifies no checksum, so that many runs are looked at quickly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.runtime.directory.lock import is_locked
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import LOOP_STATE, MANIFEST, CheckpointStore, exported_step

Status = Literal["running", "finished", "stopped early", "resumable", "not resumable", "not started", "damaged"]
RECENT_SECONDS = 120.0
"""A run without a lock whose files changed so short a time ago may be at work."""


@dataclass(frozen=True)
class RunState:
    """Where a run stands.

    Attributes:
        status: see `Status`; `running` without a lock is a guess from the age of its files.
        step: last step that the metrics or the latest checkpoint know; None before the first.
        total_steps: that the configuration asks for; None where it derives them from epochs, or is missing.
        exported: step of the exported model; None where there is none.
        score: validation score of the exported model; None without validation.
        stop_reason: why training ended before its last step, or what is damaged; None when nothing did and nothing is.
        changed: when a file of the run was last written, in seconds since the epoch; 0 where there is none.
        locked: a living process holds the run's lock.
    """

    status: Status
    step: int | None = None
    total_steps: int | None = None
    exported: int | None = None
    score: float | None = None
    stop_reason: str | None = None
    changed: float = 0.0
    locked: bool = False


def read_state(path: str | Path, now: float | None = None) -> RunState:
    """Look at a run directory; never raises for what is in it.

    Args:
        path: of the run.
        now: seconds since the epoch; None asks the clock.
    """
    run = RunDirectory(path)
    config, damage = _config(run)
    loop, problem = _latest(run)
    damage = damage or problem
    total = config.get("total_steps")
    total = total if isinstance(total, int) and not isinstance(total, bool) else None
    steps = [s for s in (_whole(last_row(run.metrics).get("step")), _whole(loop.get("step"))) if s is not None]
    step = max(steps, default=None)
    model = next((m for m in (run.final("policy"), run.final("model")) if m.is_dir()), None)
    record = _record(model / "export.json") if model else {}
    changed = max((_modified(p) for p in _watched(run)), default=0.0)
    locked = is_locked(run.path)
    stop = loop.get("stop_reason")
    reached = _whole(loop.get("step"))
    done = reached is not None and total is not None and reached >= total
    if not loop and model is not None and total is not None and step is not None and step >= total:
        done = True  # its checkpoints were removed
    if total is None and stop is None and model is not None and (run.results.is_file() or run.trust.is_file()):
        done = True  # the number of steps follows from epochs: what comes after training is there
    recent = (time.time() if now is None else now) - changed < RECENT_SECONDS
    return RunState(
        status=_status(run, damage, stop, done=done, at_work=locked or (recent and not damage)),
        step=step,
        total_steps=total,
        exported=exported_step(model) if model else None,
        score=_float(record.get("score")),
        stop_reason=damage or (str(stop) if stop else None),
        changed=changed,
        locked=locked,
    )


def _status(run: RunDirectory, damage: str | None, stop: Any, *, done: bool, at_work: bool) -> Status:
    if done and not damage:
        return "finished"
    if stop:
        return "stopped early"
    if at_work:
        return "running"
    if damage:
        return "damaged"
    if CheckpointStore(run.checkpoints, 1).steps():
        return "resumable"
    return "not resumable" if run.metrics.is_file() or run.eval.is_file() else "not started"


def _config(run: RunDirectory) -> tuple[Mapping[str, Any], str | None]:
    if not run.config_path.is_file():
        return {}, None
    try:
        return run.read_config(), None
    except FineGrainedError as error:
        return {}, str(error)


def _latest(run: RunDirectory) -> tuple[Mapping[str, Any], str | None]:
    """The loop's state in the latest checkpoint that has all its files, and what is wrong with later ones."""
    store = CheckpointStore(run.checkpoints, 1)
    steps = store.steps()
    for step in reversed(steps):
        directory = store.path(step)
        if _is_whole(directory):
            return _record(directory / LOOP_STATE), None
    return {}, f"none of the {len(steps)} checkpoints is whole" if steps else None


def _is_whole(directory: Path) -> bool:
    files = _record(directory / MANIFEST).get("files")
    if not isinstance(files, Mapping) or LOOP_STATE not in files:
        return False
    try:
        return all((directory / name).stat().st_size == entry["bytes"] for name, entry in files.items())
    except (OSError, KeyError, TypeError):
        return False


def _record(path: Path) -> Mapping[str, Any]:
    try:
        value = read_json(path)
    except (FineGrainedError, OSError):
        return {}
    return value if isinstance(value, Mapping) else {}


def last_row(path: Path) -> Mapping[str, Any]:
    """The last whole line of a metrics file that has a step; only its end is read. Empty where there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, path.stat().st_size - 65_536))
            lines = stream.read().decode("utf-8", "replace").split("\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _whole(row.get("step")) is not None:
            return row
    return {}


def _watched(run: RunDirectory) -> list[Path]:
    return [run.config_path, run.metrics, run.eval, run.results, run.checkpoints, *run.checkpoints.glob("step_*")]


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _whole(value: Any) -> int | None:
    return int(value) if is_number(value) else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
