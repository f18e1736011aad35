"""The training loop that every trainer shares: resume, metrics, validation, checkpoints, export.

Knows steps and files. Knows no model and no loss: a `Trainable` does the work of a step, which must follow from (seed,
step, rank) and its saved state alone; then a run that was killed ends like one that was not. Gradients are summed over
processes, never averaged back into one model: processes that start from different parameters, or update them
differently, would go on apart without any other sign, so the loop compares hashes of what they hold.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.files import Write, atomic_directory, read_json, write_json
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.runtime.console import TrainingProgress
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import (
    EXPORT_RECORD,
    CheckpointStore,
    Checksums,
    DiskFullError,
    LoopState,
    Start,
    complete,
    exported_step,
    find_start,
    make_ready,
    reporting_full_disk,
)
from finegrained_rlhf.runtime.loop.forecast import first_step
from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult, Trainable
from finegrained_rlhf.runtime.loop.writing import BackgroundWriter, Writing
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sinks import MetricSinks

logger = logging.getLogger(__name__)

# Odd factors, so that multiplying by them is a bijection of 64-bit words (SplitMix64's, as signed numbers).
_ELEMENT, _PLACE = -0x61C8864680B583EB, -0x40A7B892E31B1A47
_CHUNK = 1 << 22
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def parameter_hash(parameter: Tensor) -> Tensor:
    """A 64-bit hash of a tensor's exact bits, computed where the tensor lies.

    h = Σ_i mix(b_i, i) mod 2⁶⁴, with b_i the bits of element i as an integer. Sums of integers do not depend on their
    order, so that every device gives the same number; mix is a bijection of b_i for each i, so that one changed element
    always changes the sum.

    Args:
        parameter: any shape and dtype.

    Returns:
        int64 scalar on the parameter's device.
    """
    bits = parameter.detach().reshape(-1).view(_BITS[parameter.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        places = torch.arange(start, start + part.numel(), dtype=torch.int64, device=bits.device)
        mixed = part * _ELEMENT + places * _PLACE
        mixed = (mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)) * _PLACE  # a logical shift
        total += (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)).sum()
    return total


def check_agreement(parameters: Mapping[str, Tensor], processes: Processes, step: int) -> None:
    """Compare the hashes of all parameters over all processes; every process must call this.

    Args:
        parameters: what is trained, by name, of any shapes, in the same order in every process.
        processes: of the run.
        step: the training step after which this is, for the message.

    Raises:
        ConsistencyError: in all processes alike, when one of them holds other values than the main process.
    """
    if processes.count == 1:
        return
    names = list(parameters)
    hashes = torch.stack([parameter_hash(p).cpu() for p in parameters.values()]).tolist() if names else []
    first, *others = processes.gather_objects([list(zip(names, hashes, strict=True))])
    for rank, digests in enumerate(others, start=1):
        differing = [name for name, value in first if (name, value) not in set(digests)]
        if differing or len(digests) != len(first):
            raise ConsistencyError(
                f"step {step}: process {rank} does not hold the trained parameters of process 0 "
                f"({len(differing)} of {len(first)} differ{', first ' + differing[0] if differing else ''}); "
                "expected the same bits in every process, so nothing is trained or saved from here on"
            )


__all__ = ["EXPORT_RECORD", "LoopConfig", "LoopResult", "Trainable", "run_loop"]

_NOWHERE = Start(None, LoopState(step=-1))


def run_loop(
    trainable: Trainable,
    run: RunDirectory,
    config: LoopConfig,
    processes: Processes,
    sinks: MetricSinks | None = None,
) -> LoopResult:
    """Train until `total_steps`, or until the trainable or the patience says stop; resume as the config says.

    Returns:
        How it ended, alike in all processes.

    Raises:
        DiskFullError: there was no room to write.
        CheckpointError: no whole checkpoint is left to resume from.
        ConfigError: `resume` names no checkpoint, or the run directory holds something else.
        ConsistencyError: before the first step, or where a checkpoint is due, the processes hold different parameters.
    """
    return _Loop(trainable, run, config, processes, sinks or MetricSinks()).run()


class _Loop:
    def __init__(
        self, trainable: Trainable, run: RunDirectory, config: LoopConfig, processes: Processes, sinks: MetricSinks
    ) -> None:
        self.trainable, self.run_directory, self.config = trainable, run, config
        self.processes, self.sinks = processes, sinks
        self.store = CheckpointStore(run.checkpoints, config.keep_checkpoints)
        self.export_path = run.final(config.export)
        self.writer = BackgroundWriter(processes)
        self._taken: Write | None = None

    def run(self) -> LoopResult:
        with self._explained():
            start = self.processes.broadcast_object(self._find() if self.processes.is_main else _NOWHERE)
            state = start.state
            if start.checkpoint is not None and self._finished(state):
                return self._already_done(state)
            if start.checkpoint is not None:
                self.trainable.load_state(start.checkpoint)
            check_agreement(self.trainable.optimizer.share.common, self.processes, max(state.step, 0))
            if self.processes.is_main:
                with reporting_full_disk(f"files in {self.run_directory.path}"):
                    make_ready(self.run_directory, self.store, start, self.config.export)
                    self._write_state(start.state if start.checkpoint is not None else LoopState(step=0))
                    self.sinks.open(self.run_directory, max(start.state.step, 0))
                if start.checkpoint is not None:
                    logger.info(
                        "resuming from %s (step %d of %d)", start.checkpoint, state.step, self.config.total_steps
                    )
            try:
                with self.writer:
                    state = self._train(state if start.checkpoint is not None else self._begin())
            finally:
                self.sinks.close()
            self._finish(state)
        if self.processes.is_main and state.stop_reason is not None and state.step < self.config.total_steps:
            logger.warning(
                "training ended at step %d of %d: %s", state.step, self.config.total_steps, state.stop_reason
            )
        return self._result(state)

    def _write_state(self, state: LoopState) -> None:
        """Say in `run.json` how far the run is (main process only)."""
        path, now = self.run_directory.state, state.to_json(self.config.total_steps)
        if not path.is_file() or read_json(path) != now:
            write_json(path, now)

    def _find(self) -> Start:
        return find_start(self.run_directory, self.store, self.config)

    def _finished(self, state: LoopState) -> bool:
        return state.step >= self.config.total_steps or state.stop_reason is not None

    def _already_done(self, state: LoopState) -> LoopResult:
        self._finish(state)
        if self.processes.is_main:
            why = f" ({state.stop_reason})" if state.stop_reason else ""
            logger.info(
                "%s is done: it ended at step %d%s; raise total_steps or set resume=never to train more",
                self.run_directory.path,
                state.step,
                why,
            )
        return replace(self._result(state), already_done=True)

    def _begin(self) -> LoopState:
        state = LoopState(step=0)
        if self.config.validate_every is not None:
            state = self._validate(state)
        self._checkpoint(state)
        self._taken = None
        return state

    def _train(self, state: LoopState) -> LoopState:
        with TrainingProgress(self.config.total_steps, state.step, shown=self.processes.is_main) as progress:
            if not self._finished(state):
                with first_step(self.config.total_steps - state.step, self.processes.is_main):
                    state = self._step(replace(state, step=state.step + 1), progress)
            while not self._finished(state):
                state = self._step(replace(state, step=state.step + 1), progress)
        return state

    def _step(self, state: LoopState, progress: TrainingProgress) -> LoopState:
        step, config = state.step, self.config
        started, worked = time.perf_counter(), time.process_time()
        seed_everything(config.seed, "train", step, self.processes.rank)
        metrics = {**self.trainable.train_step(step), "processes": self.processes.count}
        metrics["time/step_s"] = time.perf_counter() - started
        metrics["time/processor_s"] = time.process_time() - worked  # of all threads of this process
        self.writer.look()
        if self.processes.is_main:
            with reporting_full_disk(f"metrics in {self.run_directory.metrics}"):
                self.sinks.log(step, metrics)
        state = replace(state, stop_reason=self.trainable.stop_reason)
        every, saves = config.validate_every, step % config.checkpoint_every == 0
        validates = every is not None and (step % every == 0 or self._finished(state))
        if validates or saves:
            self.writer.finish()
        if validates:
            state = self._validate(state)
        if saves or self._finished(state):
            self._checkpoint(state)
        self._taken = None
        progress.step(step, metrics)
        return state

    def _validate(self, state: LoopState) -> LoopState:
        started = time.perf_counter()
        seed_everything(self.config.seed, "validate", state.step, self.processes.rank)
        metrics = dict(self.trainable.validate(state.step))
        if not metrics:
            return state
        if "score" not in metrics:
            raise ValueError(f"validate() must return a score, got {sorted(metrics)}")
        score = float(metrics["score"])
        if not math.isfinite(score):
            raise ConsistencyError(
                f"the validation at step {state.step} gave the score {score}: a reward or the weights of a model "
                "are not finite"
            )
        metrics["time/validate_s"] = time.perf_counter() - started
        if self.processes.is_main:
            with reporting_full_disk(f"metrics in {self.run_directory.eval}"):
                self.sinks.log_eval(state.step, metrics)
        missed = int(metrics.get("constraints_missed", 0))
        if state.beaten_by(score, missed):
            state = replace(state, best_step=state.step, best_score=score, best_missed=missed, stale_validations=0)
            self._export(state)
        else:
            state = replace(state, stale_validations=state.stale_validations + 1)
        patience = self.config.patience
        if patience is not None and state.stale_validations >= patience and state.stop_reason is None:
            state = replace(state, stop_reason=f"no better validation for {patience} validations")
        return replace(state, stop_reason=state.stop_reason or self.trainable.stop_reason)

    def _checkpoint(self, state: LoopState) -> None:
        """Take a checkpoint, to be written while training goes on."""
        check_agreement(self.trainable.optimizer.share.common, self.processes, state.step)
        model, rest, path = self._model_to_save(), self.trainable.state_to_save(), self.store.path(state.step)

        def write(directory: Path) -> None:
            rest(directory)
            (directory / self.config.export).mkdir()
            model(directory / self.config.export)

        def written() -> None:
            self.store.prune()
            with reporting_full_disk(f"files in {self.run_directory.path}"):
                self._write_state(state)

        def finish(directory: Path, files: Checksums) -> None:
            complete(directory, state, files)

        what = write if self.processes.is_main else rest
        self.writer.begin(Writing(path, f"checkpoint {path}", what, finish, written))

    def _export(self, state: LoopState) -> None:
        """Take the model that users will look for, to be written with a note of its step while training goes on."""

        def finish(directory: Path, files: Checksums) -> None:
            write_json(directory / EXPORT_RECORD, {"step": state.step, "score": state.best_score})

        path = self.export_path
        self.writer.begin(Writing(path, f"model {path}", self._model_to_save(), finish))

    def _model_to_save(self) -> Write:
        """The model after this step, taken once where it is both exported and part of a checkpoint."""
        if self._taken is None:
            self._taken = self.trainable.model_to_save()
        return self._taken

    def _finish(self, state: LoopState) -> None:
        """Make sure that the exported model is the best one, or the last one where nothing was validated."""
        best = self._result(state).best_step
        if self.processes.is_main:
            self.store.prune()  # a kill right after the last checkpoint leaves one too many
        if self.processes.is_main and exported_step(self.export_path) != best:
            step = best if self.store.path(best).is_dir() else state.step
            if step != best:
                logger.warning(
                    "the best model (step %d) is no longer in %s; exporting that of step %d",
                    best,
                    self.export_path,
                    step,
                )
            with reporting_full_disk(f"model {self.export_path}"), atomic_directory(self.export_path) as directory:
                shutil.copytree(self.store.path(step) / self.config.export, directory, dirs_exist_ok=True)
                write_json(
                    directory / EXPORT_RECORD, {"step": step, "score": state.best_score if step == best else None}
                )
        if self.processes.is_main:
            with reporting_full_disk(f"files in {self.run_directory.path}"):
                self._write_state(state)
                self.run_directory.write_results({})
        self.processes.barrier()

    def _result(self, state: LoopState) -> LoopResult:
        best = state.step if state.best_step is None else state.best_step
        return LoopResult(state.step, best, state.best_score, state.stop_reason, best_missed=state.best_missed)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say from where the same command goes on when a run is interrupted or the disk is full."""
        try:
            yield
        except KeyboardInterrupt:
            if self.processes.is_main:
                logger.warning("\ninterrupted; %s", self._outlook())
            raise
        except DiskFullError as error:
            raise DiskFullError(f"{error}; {self._outlook()}") from error

    def _outlook(self) -> str:
        steps = self.store.steps()
        return f"the same command resumes from step {steps[-1]}" if steps else "the same command starts from step 0"
