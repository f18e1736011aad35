"""From which checkpoint a run starts, and what has to happen to its directory before it does.

Everything here runs in the main process only.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import atomic_directory, read_json
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory, is_checkpoint_word
from finegrained_rlhf.runtime.loop.checkpoints import CheckpointStore, LoopState, find_checkpoint, read_checkpoint
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
