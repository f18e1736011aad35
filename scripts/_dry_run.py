"""A job's dry run: nothing is prepared in, written to or taken from the run directory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from _steps import build, expanded, resolved, run_step
from omegaconf import DictConfig

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.run_directory import PREPARED


def dry_run(cfg: DictConfig) -> None:
    """Build the job and run it; it knows that it is a dry run.

    What `prepare` would make in the run directory is made in a temporary one, unless it is there already or a step
    trains.

    Raises:
        FineGrainedError: a user's error.
    """
    processes, hint = Processes(), ""
    with tempfile.TemporaryDirectory() as scratch:
        config = resolved(cfg)
        steps = list(expanded(config.get("prepare") or {}))
        if steps and not Path(config["output_dir"], PREPARED).exists():
            if any(step.get("script", "").startswith("train_") for _, step in steps):
                hint = " (a dry run does not train what `prepare` names: start the run once without dry_run)"
            else:
                cfg.output_dir = processes.broadcast_object(scratch)
                config = resolved(cfg)
                for name, step in expanded(config["prepare"]):
                    run_step(step, f"[prepare: {name}]", processes)
                processes.barrier()
        try:
            build(_without_steps(config)).run()
        except FineGrainedError as error:
            raise type(error)(f"{error}{hint}") from None
        processes.barrier()


def _without_steps(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("prepare", "settings")}
