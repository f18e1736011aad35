"""Checks of where a run writes: its directory, what it would go on from, and the disk.

Only reads: what a run would delete, set aside or write stays as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import CheckpointError
from finegrained_rlhf.preflight.doctor.case import Case, Finding
from finegrained_rlhf.preflight.memory.formulas import GIB
from finegrained_rlhf.preflight.memory.plan import Plan
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory, is_checkpoint_word
from finegrained_rlhf.runtime.loop.checkpoints import MANIFEST, CheckpointStore, LoopState, read_checkpoint


def output_directory(case: Case) -> Iterator[Finding]:
    """The run directory can be written to and holds nothing foreign; from which step the run would go on."""
    if "output_dir" not in case.keys:
        yield Finding("skipped", "output_dir has no value")
        return
    run = RunDirectory(case.keys["output_dir"])
    case.files = _stamps(run.path)
    place = existing(run.path)
    if not place.is_dir():
        yield Finding("fail", f"{place} is no directory", "output_dir: a path whose parents are directories")
    elif not os.access(place, os.W_OK | os.X_OK):
        yield Finding("fail", f"{place} cannot be written to", f"output_dir elsewhere, or the permissions of {place}")
    elif run.is_foreign():
        what = f"{run.path} is not empty and holds no training run"
        yield Finding("fail", what, "output_dir: a new directory or that of a run; or empty it")
    else:
        yield _start(run, case.keys)


def _start(run: RunDirectory, keys: Mapping[str, Any]) -> Finding:
    """From which step the run would go on, as `runtime/loop/checkpoints.py` will decide it, without touching a file."""
    resume, total = str(keys["resume"]), int(keys["total_steps"])
    if resume == "never":
        if not run.is_run():
            return Finding("pass", f"{run.path}: a new run of {total} steps")
        steps = CheckpointStore(run.checkpoints, 1).steps()
        what = f"{run.path} holds a run with checkpoints {steps}: resume=never deletes it"
        return Finding("warn", what, "resume=auto goes on with it; another output_dir keeps it")
    source = run.checkpoints
    if is_checkpoint_word(resume) and not CheckpointStore(source, 1).steps():
        source = Path(resume) if (Path(resume) / MANIFEST).is_file() else RunDirectory(resume).checkpoints
    path, state, damaged = latest_sound(source)
    if path is None or state is None:
        if damaged:
            return Finding("fail", f"every checkpoint in {source} is damaged", "resume=never starts over")
        if is_checkpoint_word(resume):
            return Finding("fail", f"no checkpoint in {resume}", "resume: auto, never, a checkpoint or a run directory")
        return Finding("pass", f"{run.path}: a new run of {total} steps")
    what = f"continues {path}: step {state.step} of {total}"
    if state.step >= total or state.stop_reason is not None:
        why = f" ({state.stop_reason})" if state.stop_reason else ""
        return Finding(
            "warn",
            f"{run.path} is done: it ended at step {state.step}{why}; nothing would be trained",
            "total_steps above that, resume=never, or another output_dir",
        )
    if damaged:
        return Finding("warn", f"{what}; damaged, not used: {', '.join(damaged)}", "look at the disk of output_dir")
    different = run.differing_keys(keys) if source == run.checkpoints and run.config_path.is_file() else []
    if different := [key for key in different if key.partition(".")[0] in keys]:
        remedy = "those that the run began with, another output_dir, or resume_changed=allow if the new ones are meant"
        return Finding("warn", f"{what}; it began with other values of {', '.join(different)}", remedy)
    return Finding("pass", what)


def untouched(case: Case) -> Iterator[Finding]:
    """Nothing in the run directory has changed since the first look at it."""
    if "output_dir" not in case.keys:
        yield Finding("skipped", "output_dir has no value")
        return
    path = Path(case.keys["output_dir"])
    now = _stamps(path)
    changed = sorted(str(p) for p in now.keys() | case.files.keys() if now.get(p) != case.files.get(p))
    if changed:
        what = f"{len(changed)} files of {path} changed during the checks, for example {changed[0]}"
        yield Finding("fail", what, "output_dir: a directory in which nothing else is running")
    else:
        yield Finding("pass", f"{path} is as it was ({len(now)} files)" if path.exists() else f"{path} was not made")


def _stamps(path: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of last change of every file under a directory; a file that vanishes meanwhile is left out."""
    stamps = {}
    for file in path.rglob("*"):
        try:
            stamps[file] = (file.stat().st_size, file.stat().st_mtime_ns)
        except FileNotFoundError:
            continue
    return stamps


def latest_sound(directory: Path) -> tuple[Path | None, LoopState | None, list[str]]:
    """The latest checkpoint whose files match their checksums, its state, and the names of damaged ones after it.

    Args:
        directory: a directory of checkpoints, or one checkpoint.
    """
    store = CheckpointStore(directory, 1)
    paths = [directory] if (directory / MANIFEST).is_file() else [store.path(step) for step in store.steps()]
    damaged: list[str] = []
    for path in reversed(paths):
        try:
            return path, read_checkpoint(path), damaged
        except CheckpointError:
            damaged.append(path.name)
    return None, None, damaged


def disk(case: Case) -> Iterator[Finding]:
    """Room for the checkpoints that are kept, one that is being written, and the exported model."""
    assert case.plan is not None
    run = RunDirectory(case.keys["output_dir"])
    needed = run_bytes(case.plan, int(case.keys["keep_checkpoints"])) - directory_bytes(run.path)
    free = shutil.disk_usage(existing(run.path)).free
    what = f"a checkpoint has {_size(checkpoint_bytes(case.plan))}; {_size(max(needed, 0))} more are needed in all, "
    what += f"{_size(free)} are free"
    if needed > free:
        yield Finding("fail", what, "output_dir on a larger disk, a smaller keep_checkpoints, or policy=lora")
    else:
        yield Finding("pass", what)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.1f} MiB"


def checkpoint_bytes(plan: Plan) -> int:
    """Policy, value model and adapters in fp32, and two fp32 moments a trained parameter."""
    shapes = [plan.policy, *([plan.value] if plan.value is not None else [])]
    adapters = 0 if plan.reference_copy else 4 * plan.policy.trained
    return sum(4 * shape.parameters + 8 * shape.trained for shape in shapes) + adapters


def run_bytes(plan: Plan, keep_checkpoints: int) -> int:
    """The most that a run holds at once: step 0, the latest ones, a new one beside them, two exported policies."""
    return (keep_checkpoints + 2) * checkpoint_bytes(plan) + 2 * 4 * plan.policy.parameters


def directory_bytes(path: Path) -> int:
    """What the files under a directory hold; 0 where it does not exist."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def existing(path: Path) -> Path:
    """The nearest directory or file that exists on the way to `path`."""
    return next(parent for parent in (path, *path.absolute().parents) if os.path.lexists(parent))
