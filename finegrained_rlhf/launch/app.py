"""One command around its job: its arguments, Hydra, and what Hydra runs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from finegrained_rlhf.launch.checks.experiments import check_experiment, check_own_options
from finegrained_rlhf.launch.command_line import read_command_line
from finegrained_rlhf.launch.configurations import conf_directory
from finegrained_rlhf.launch.filling import fill_defaults
from finegrained_rlhf.launch.mistakes import one_line_errors, user_errors
from finegrained_rlhf.launch.rewards import opened
from finegrained_rlhf.launch.sweeps.points import use_own_directory

_CHOOSES_BY_REWARD = ("evaluate", "generate", "reweigh")
"""Commands that take `reward.…=` keys of a reward that the run's `config.yaml` names."""


def run_command(name: str) -> None:
    """Run a command by its name with the arguments in `sys.argv`; ends the process where something is wrong."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors on instead of printing them itself
    if name in _CHOOSES_BY_REWARD:
        sys.argv[1:] = opened(sys.argv[1:])
    with one_line_errors(name):
        fill_defaults()
        line = read_command_line(sys.argv[1:], multirun=name == "sweep")
        sys.argv[1:] = line.words
        check_experiment(name, line.overrides)
        check_own_options(line)
        if line.help:
            from finegrained_rlhf.launch.checks.help import explained

            print(explained(name, line))
        elif name == "sweep":
            from finegrained_rlhf.launch.sweeps.callback import as_multirun, interruptible, run_point

            gc.enable()
            sys.argv[1:] = as_multirun(sys.argv[1:])
            with interruptible():
                _hydra(name, run_point)
        else:
            _hydra(name, _task(name))


def _task(name: str) -> Callable[[DictConfig], None]:
    """What Hydra runs, also in another process: the command's own task, or its job."""

    def task(cfg: DictConfig) -> None:
        gc.enable()
        with user_errors(name):
            _TASKS.get(name, run_app)(cfg)

    return task


def _hydra(name: str, task: Callable[[DictConfig], None]) -> None:
    hydra.main(version_base=None, config_path=str(conf_directory()), config_name=name)(task)()


def run_app(cfg: DictConfig) -> None:
    """Run the job that a composed configuration describes; the jobs of a multirun get a directory each."""
    use_own_directory(cfg)
    from finegrained_rlhf.launch.steps import (
        run_config,  # takes seconds to import: --help and mistakes need not wait
    )

    run_config(cfg, HydraConfig.get().overrides.task)


def run_ppo(cfg: DictConfig) -> None:
    """Run PPO, or with dry_run=true say what memory it needs."""
    if cfg.dry_run is not True:
        run_app(cfg)
        return
    from finegrained_rlhf.launch.preflight.dry_run import dry_run

    dry_run(cfg)


def run_doctor(cfg: DictConfig) -> None:
    """Examine the configuration of a run; exit status 0 where it is ready, 1 where it is not."""
    from finegrained_rlhf.launch.preflight.doctor import examine_config

    if status := examine_config(cfg):
        sys.exit(status)


def run_experiment(cfg: DictConfig) -> None:
    """Run every step of an experiment."""
    use_own_directory(cfg)
    from finegrained_rlhf.launch.pipeline import run_pipeline

    run_pipeline(cfg)


_TASKS = {"train_ppo": run_ppo, "doctor": run_doctor, "run_experiment": run_experiment}
