"""One command around its job: Hydra, messages, quiet libraries, and every mistake of a user in one line.

Exit status: 0 done; 1 it ran and something failed (points of a sweep, findings of the doctor, an error of ours, with
its traceback); 2 the user's mistake, or something outside the code that is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.launch.checks.experiments import check_experiment, check_own_options
from finegrained_rlhf.launch.command_line import read_command_line
from finegrained_rlhf.launch.commands import conf_directory
from finegrained_rlhf.launch.filling import fill_defaults
from finegrained_rlhf.launch.mistakes import explain_command_line, explain_os_error, is_of_configuration
from finegrained_rlhf.launch.rewards import opened
from finegrained_rlhf.launch.sweeps.points import use_own_directory
from finegrained_rlhf.models.quiet import silence_transformers

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

            sys.argv[1:] = as_multirun(sys.argv[1:])
            with interruptible():
                _hydra(name, run_point)
        else:
            _hydra(name, _task(name))


def _task(name: str) -> Callable[[DictConfig], None]:
    """What Hydra runs, also in another process: the command's own task, or its job."""

    def task(cfg: DictConfig) -> None:
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
    from finegrained_rlhf.launch.steps import run_pipeline

    run_pipeline(cfg)


_TASKS = {"train_ppo": run_ppo, "doctor": run_doctor, "run_experiment": run_experiment}


def _say(message: str) -> None:
    """Print an error once: other processes wait, because the launcher ends them when the main one has spoken."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(3)
        message = f"[process {os.environ['RANK']}] {message}"
    print(f"error: {message}", file=sys.stderr)


@contextmanager
def one_line_errors(command: str) -> Iterator[None]:
    """A user's error, a mistake on the command line, or what the file system refused: one line and exit status 2."""
    try:
        yield
    except BrokenPipeError:
        raise
    except FineGrainedError as error:
        _say(str(error))
        sys.exit(2)
    except Exception as error:
        if is_of_configuration(error):
            _say(explain_command_line(error, command, read_command_line(sys.argv[1:])))
        elif isinstance(error, OSError) and error.errno is not None:  # else a library's own, perhaps a fault of ours
            _say(explain_os_error(error))
        else:
            raise
        sys.exit(2)


@contextmanager
def user_errors(command: str) -> Iterator[None]:
    """Messages on standard error; errors of the user in one line, Ctrl-C with exit status 130.

    Args:
        command: by name.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    for noisy in ("absl", "accelerate", "datasets", "httpx", "filelock"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    silence_transformers()
    warnings.filterwarnings(
        "ignore", message=".*is_gradient_checkpointing", category=FutureWarning
    )  # transformers' own
    with one_line_errors(command):
        try:
            yield
        except KeyboardInterrupt:
            sys.exit(130)
