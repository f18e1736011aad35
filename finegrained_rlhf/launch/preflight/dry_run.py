"""A job's dry run: nothing is prepared in, written to or taken from the run directory."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.launch.build import build, resolved
from finegrained_rlhf.launch.checks.paths import Made, check_inputs, check_outputs
from finegrained_rlhf.launch.checks.schema import check_keys
from finegrained_rlhf.launch.steps import check_steps, expanded, run_step
from finegrained_rlhf.preflight.memory.preflight import preflight
from finegrained_rlhf.runtime.directory.run_directory import PREPARED
from finegrained_rlhf.runtime.job import RESERVED_KEYS
from finegrained_rlhf.runtime.processes import Processes

_NOT_TRAINED = " (a dry run does not train what `prepare` names: start the run once without it)"


def dry_run(cfg: DictConfig) -> None:
    """Build the job and say what memory it needs, by model and phase.

    Raises:
        FineGrainedError: a user's error.
    """
    keys = {key: value for key, value in resolved(cfg).items() if key not in RESERVED_KEYS}
    check_keys(keys)
    check_outputs(keys)
    processes = Processes()
    with prepared(cfg, processes) as (config, hint):
        try:
            check_inputs(config)
            job = build(config)
            plan = preflight(job, Processes(job.processes))
        except FineGrainedError as error:
            raise type(error)(f"{error}{hint}") from None
    if processes.is_main:
        print(plan)


@contextmanager
def prepared(
    cfg: DictConfig, processes: Processes, resolve: Callable[[DictConfig], dict[str, Any]] = resolved
) -> Iterator[tuple[dict[str, Any], str]]:
    """A job's configuration, resolved, with what its `prepare` steps make.

    What they would make in the run directory is made in a temporary one, unless it is there already or a step trains.

    Args:
        cfg: composed; stays as it is.
        processes: of this run.
        resolve: gives plain containers.

    Returns:
        The job's keys, and what to add to an error about a missing file: empty, or that a step was left out.

    Raises:
        FineGrainedError: a user's error.
    """
    hint = ""
    with tempfile.TemporaryDirectory() as scratch:
        config = resolve(cfg)
        output = config["output_dir"]
        steps = list(expanded(config.get("prepare") or {}))
        if steps and not Path(output, PREPARED).exists():
            if any(step.declared.get("script", "").startswith("train_") for step in steps):
                hint = _NOT_TRAINED
            else:
                cfg = copy.deepcopy(cfg)
                cfg.output_dir = processes.broadcast_object(scratch)
                config = resolve(cfg)
                steps = list(expanded(config["prepare"]))
                check_steps(steps, "prepare: ", Made())
                for step in steps:
                    run_step(step, f"[prepare: {step.name}]", processes)
                processes.barrier()
        job = {key: value for key, value in config.items() if key not in RESERVED_KEYS}
        yield {**job, "output_dir": output}, hint
        processes.barrier()
