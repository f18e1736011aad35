"""Checkpoints: whole or absent, with a checksum of every file; and from which of them a run starts.

What a checkpoint holds is written and read by the trainer; no pickle is ever loaded. What has to happen to a directory
before a run starts in it happens in the main process only.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import CheckpointError, ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.files import atomic_directory, read_json, sha256_of, write_json
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory, is_checkpoint_word
from finegrained_rlhf.runtime.loop.types import LoopConfig

logger = logging.getLogger(__name__)

EXPORT_RECORD = "export.json"
"""Beside an exported model: its step and its validation score."""


@dataclass(frozen=True)
class Start:
    """Where a run starts.

    Attributes:
        checkpoint: what to load; None starts from the initial model.
        state: of the loop at that checkpoint.
        foreign: True when the checkpoint lies in another run's directory.
    """

    checkpoint: Path | None
    state: LoopState
    foreign: bool = False


def find_start(run: RunDirectory, store: CheckpointStore, config: LoopConfig) -> Start:
    """Decide from where to start; with resume=never, delete the earlier run first.

    Raises:
        ConfigError: `resume` names no checkpoint, or one that is already past `total_steps`; or `total_steps` lies
            between the checkpoint and the model that the run has already exported as its best.
        CheckpointError: the checkpoints are damaged.
    """
    if config.resume == "never":
        run.start_over()
    run.clean()
    if is_checkpoint_word(config.resume):
        path = find_checkpoint(config.resume)
        own = path.resolve().parent == store.directory.resolve()
        if own or not store.steps():
            state = replace(read_checkpoint(path), stop_reason=None)
            if state.step >= config.total_steps:
                raise ConfigError(
                    f"total_steps: {path} already stands at step {state.step}; expected more than that to train on"
                )
            _refuse_unreachable_best(RunDirectory(path.parent.parent), state, config)
            return Start(path, state, foreign=not own)
        logger.warning("%s already holds a run; it goes on from there and not from %s", run.path, path)
    latest = store.latest()
    if latest is None:
        return Start(None, LoopState(step=-1))
    _refuse_unreachable_best(run, latest[1], config)
    return Start(*latest)


def _refuse_unreachable_best(run: RunDirectory, state: LoopState, config: LoopConfig) -> None:
    """A killed run may have exported a best model later than its last checkpoint; the earlier best one is gone then."""
    exported = exported_step(run.final(config.export))
    if exported is not None and state.step < config.total_steps < exported:
        raise ConfigError(
            f"total_steps: got {config.total_steps}, but {run.path} had come as far as step {exported}, whose model is "
            f"exported as its best; expected at least {exported} (or resume=never to start over)"
        )


def exported_step(model: Path) -> int | None:
    """The step of an exported model; None where there is none, or no record of its step."""
    try:
        return int(read_json(model / EXPORT_RECORD)["step"])
    except (DataError, KeyError, TypeError, ValueError):
        return None


def make_ready(run: RunDirectory, store: CheckpointStore, start: Start, export: str) -> None:
    """Bring the run directory to the state that it had right after the step at which the run starts."""
    run.create()
    if start.checkpoint is not None and start.foreign:
        _adopt(run, store, RunDirectory(start.checkpoint.parent.parent), export)
        logger.info("continuing %s in %s", start.checkpoint, run.path)
    if start.checkpoint is not None:
        store.forget_after(start.state.step)
    run.rewind(start.state.step)


def _adopt(run: RunDirectory, store: CheckpointStore, other: RunDirectory, export: str) -> None:
    """Copy the history of another run: its metrics so far, its first checkpoint and the model it exported last."""
    run.refuse_foreign()
    for source, target in ((other.metrics, run.metrics), (other.eval, run.eval)):
        if source.is_file():
            shutil.copyfile(source, target)
    first = CheckpointStore(other.checkpoints, 1).path(0)
    for source, target in ((other.final(export), run.final(export)), (first, store.path(0))):
        if source.is_dir() and not target.exists():
            with atomic_directory(target) as directory:
                shutil.copytree(source, directory, dirs_exist_ok=True)


Checksums = dict[str, dict[str, str | int]]

MANIFEST = "manifest.json"
LOOP_STATE = "loop.json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_ROOM_WORDS = ("No space left", "Disk quota exceeded", "File too large", "os error 28", "os error 27")


class DiskFullError(CheckpointError):
    """There was no room to write; what was saved before is intact."""


@dataclass(frozen=True)
class LoopState:
    """Where the training loop stands after a step.

    Attributes:
        step: the last finished step.
        best_step: the step of the best validation so far; None before the first.
        best_score: its score.
        best_missed: how many constraints it missed.
        stale_validations: validations since the best one.
        stop_reason: why training ended before `total_steps`; None when it did not.
    """

    step: int
    best_step: int | None = None
    best_score: float | None = None
    stale_validations: int = 0
    stop_reason: str | None = None
    best_missed: int = 0

    def beaten_by(self, score: float, missed: int) -> bool:
        """Whether a validation is the best so far: it misses fewer constraints, or as many with a higher score."""
        return self.best_score is None or (-missed, score) > (-self.best_missed, self.best_score)

    def to_json(self, total_steps: int) -> dict[str, Any]:
        """What `run.json` says of a run that stands here.

        Returns:
            `status` (`training`, or `ended`), `step` and `total_steps`; `best_step` and `best_score` of the exported
            model (null before the first validation); `stop_reason`: why it ended before `total_steps`, null if it did
            not.
        """
        ended = self.step >= total_steps or self.stop_reason is not None
        score = self.best_score
        return {
            "status": "ended" if ended else "training",
            "step": self.step,
            "total_steps": total_steps,
            "best_step": self.best_step,
            "best_score": score if score is None or math.isfinite(score) else None,
            "stop_reason": self.stop_reason,
        }


class CheckpointStore:
    """The checkpoints of one run: `step_N` directories.

    Args:
        directory: where they lie.
        keep: how many of the latest stay; step 0 stays as well.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep

    def path(self, step: int) -> Path:
        """The directory of the checkpoint of a step."""
        return self.directory / f"step_{step}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, ascending, damaged ones included."""
        names = (entry.name.removeprefix("step_") for entry in self.directory.glob("step_*") if entry.is_dir())
        return sorted(int(name) for name in names if name.isdigit())

    def latest(self) -> tuple[Path, LoopState] | None:
        """The latest whole checkpoint; damaged ones on the way are reported and set aside as `step_N.damaged`.

        Raises:
            CheckpointError: there are checkpoints and all of them are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            path = self.path(step)
            try:
                return path, read_checkpoint(path)
            except CheckpointError as error:
                aside = path.with_name(f"{path.name}.damaged")
                logger.warning("%s; set aside as %s, using the one before it", error, aside.name)
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(path, aside)
        if steps:
            raise CheckpointError(f"{self.directory}: every checkpoint is damaged; resume=never starts over")
        return None

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints of later steps."""
        later = [number for number in self.steps() if number > step]
        if later:
            logger.warning("going back to step %d: removing the later checkpoints %s", step, later)
        for number in later:
            shutil.rmtree(self.path(number))

    def prune(self) -> None:
        """Remove the checkpoints that are no longer kept."""
        kept = {0, *self.steps()[-self.keep :]}
        for step in self.steps():
            if step not in kept:
                shutil.rmtree(self.path(step))


def complete(directory: Path, state: LoopState, files: Checksums) -> None:
    """Write the state of the loop and the list of all files, which make a directory a checkpoint.

    Args:
        directory: of the checkpoint.
        state: of the loop.
        files: of everything else in it.
    """
    write_json(directory / LOOP_STATE, asdict(state))
    listed = {**files, LOOP_STATE: _checksum(directory / LOOP_STATE)}
    write_json(directory / MANIFEST, {"step": state.step, "files": dict(sorted(listed.items()))})


def read_checkpoint(path: Path) -> LoopState:
    """Verify every file of a checkpoint against its checksum and read the state of the loop.

    Raises:
        CheckpointError: a file is missing or changed, or this is no checkpoint.
    """
    if not (path / MANIFEST).is_file():
        raise CheckpointError(f"{path}: no {MANIFEST}; expected a checkpoint written by a training run")
    try:
        listed = read_json(path / MANIFEST)["files"]
        for name, entry in listed.items():
            file = path / name
            if not file.is_file():
                raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing")
            if file.stat().st_size != entry["bytes"] or sha256_of(file) != entry["sha256"]:
                raise CheckpointError(f"checkpoint {path} is damaged: {name} does not match its checksum")
        raw = read_json(path / LOOP_STATE)
        return LoopState(**{field.name: raw[field.name] for field in fields(LoopState)})
    except CheckpointError:
        raise
    except (FineGrainedError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from None


def find_checkpoint(name: str | Path) -> Path:
    """The checkpoint that a path means: itself, or the latest whole one of a run directory.

    Raises:
        ConfigError: there is no checkpoint there.
    """
    path = Path(name)
    if (path / MANIFEST).is_file():
        return path
    if (path / "checkpoints").is_dir():
        latest = CheckpointStore(path / "checkpoints", keep=1).latest()
        if latest is not None:
            return latest[0]
    raise ConfigError(
        f"resume: {path} is neither a checkpoint nor a run directory with checkpoints; "
        "expected auto, never or such a path"
    )


@contextmanager
def reporting_full_disk(what: str) -> Iterator[None]:
    """Turn "no space left" from any library into one clear error.

    Raises:
        DiskFullError: the disk was full while `what` was written.
    """
    try:
        yield
    except Exception as error:
        # safetensors reports I/O errors in words only
        if getattr(error, "errno", None) in _NO_ROOM or any(words in str(error) for words in _NO_ROOM_WORDS):
            raise DiskFullError(
                f"the disk is full: could not write {what}; what was saved before is intact, make room and try again"
            ) from error
        raise


def checksums(directory: Path) -> Checksums:
    """Size and SHA-256 of every file below a directory, by its path there."""
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): _checksum(file) for file in files}


def _checksum(file: Path) -> dict[str, str | int]:
    return {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
