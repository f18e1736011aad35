"""One command around its job: Hydra, messages, quiet libraries, and every mistake of a user in one line.

Exit status: 0 done; 1 it ran and something failed (points of a sweep, findings of the doctor, an error of ours, with
its traceback); 2 the user's mistake, or something outside the code that is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.launch.checks.experiments import check_experiment, group_and_option, options
from finegrained_rlhf.launch.commands import conf_directory
from finegrained_rlhf.launch.rewards import opened
from finegrained_rlhf.launch.sweeps.points import use_own_directory

_CHOOSES_BY_REWARD = ("evaluate", "generate", "reweigh")
"""Commands that take `reward.…=` keys of a reward that the run's `config.yaml` names."""
INSTALL = "pip install -e '.[{extra}]' in a checkout"


def run_command(name: str) -> None:
    """Run a command by its name with the arguments in `sys.argv`; ends the process where something is wrong."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors on instead of printing them itself
    if name in _CHOOSES_BY_REWARD:
        sys.argv[1:] = opened(sys.argv[1:])
    task: Callable[[DictConfig], None] = _TASKS.get(name, run_app)
    with one_line_errors(name):
        given = [word for word in sys.argv[1:] if not word.startswith("-")]
        check_experiment(name, given)
        if {"--help", "-h"} & set(sys.argv[1:]):
            from finegrained_rlhf.launch.checks.help import explained

            print(explained(name, given))
        elif name == "sweep":
            from finegrained_rlhf.launch.sweeps.callback import as_multirun, interruptible, run_point

            sys.argv[1:] = as_multirun(sys.argv[1:])
            with interruptible():
                _hydra(name, run_point)
        else:
            _hydra(name, task)


def _hydra(name: str, task: Callable[[DictConfig], None]) -> None:
    hydra.main(version_base=None, config_path=str(conf_directory()), config_name=name)(task)()


def run_app(cfg: DictConfig) -> None:
    """Run the job that a composed configuration describes; the jobs of a multirun get a directory each."""
    use_own_directory(cfg)
    with user_errors():
        from finegrained_rlhf.launch.steps import (
            run_config,  # takes seconds to import: --help and mistakes need not wait
        )

        run_config(cfg, HydraConfig.get().overrides.task)


def run_ppo(cfg: DictConfig) -> None:
    """Run PPO, or with dry_run=true say what memory it needs."""
    if cfg.dry_run is not True:
        run_app(cfg)
        return
    with user_errors():
        from finegrained_rlhf.launch.preflight.dry_run import dry_run

        dry_run(cfg)


def run_doctor(cfg: DictConfig) -> None:
    """Examine the configuration of a run; exit status 0 where it is ready, 1 where it is not."""
    with user_errors():
        from finegrained_rlhf.launch.preflight.doctor import examine_config

        if status := examine_config(cfg):
            sys.exit(status)


def run_experiment(cfg: DictConfig) -> None:
    """Run every step of an experiment."""
    use_own_directory(cfg)
    with user_errors():
        from finegrained_rlhf.launch.steps import run_pipeline

        run_pipeline(cfg)


_TASKS = {"train_ppo": run_ppo, "doctor": run_doctor, "run_experiment": run_experiment}


def explain_command_line(error: BaseException, command: str) -> str:
    """One line for what Hydra or omegaconf found wrong with the command line of a command."""
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override}: cannot be read as KEY=VALUE; a text with a quote, comma, colon or bracket in it needs "
            r"""quotes that reach the program, as in "queries=[\"What's new?\"]", or a file of texts (input=FILE)"""
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if match := re.search(r"You must specify '([^']+)'.*Available options: (.*)", " ".join(lines)):
        return f"give {match.group(1)}=…; expected one of {', '.join(match.group(2).split())}"
    cause = str(error.__cause__ or "").split("\n")[0]
    text = " ".join(lines)
    if match := re.search(r"Could not override '([^']+)'", text):
        if "not in struct" in cause or "No match in the defaults list" in text:
            return f"unknown key {match.group(1)!r} (--help lists the keys)"
    if match := re.search(r"Could not load 'hydra/launcher/(joblib|submitit)", text):
        extra = {"joblib": "sweeps", "submitit": "slurm"}[match.group(1)]
        return f"the launcher needs {match.group(1)}: {INSTALL.format(extra=extra)}, or give hydra/launcher=basic"
    listed = r"(?:.*Available options in '[^']+': (.*?) Config search)?"
    if match := re.search(r"Could not find '([^']+/[^']+)'" + listed, text):
        group, option = group_and_option(match.group(1))
        if known := options(group, command) or (match.group(2) or "").split():
            return f"{group}={option} does not exist; expected one of {', '.join(known)}"
    return " ".join([*lines[:2], cause if cause not in text else ""]).strip()


def _not_an_option(command: str) -> str:
    """The argument that gives a group a number or a truth value where it takes an option's name."""
    for word in sys.argv[1:]:
        group, _, value = word.lstrip("+").partition("=")
        known = options(group, command)
        if known and re.fullmatch(r"null|true|false|[-+\d.e_]*\d[-+\d.e_]*", value.lower()):
            return f"{group}={value} does not exist; expected one of {', '.join(known)}"
    return "a group takes the name of an option (--help lists them)"


def explain_os_error(error: OSError) -> str:
    """One line for what the file system refused."""
    reason = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(names)}: {reason}" if names else reason


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
    except (HydraException, OmegaConfBaseException) as error:
        _say(explain_command_line(error, command))
        sys.exit(2)
    except ValueError as error:
        if "Config group override must be" not in str(error):  # how Hydra says that GROUP=3 is no option
            raise
        _say(_not_an_option(command))
        sys.exit(2)
    except OSError as error:
        if error.errno is None:  # not of the operating system: a library's own, and perhaps a fault of ours
            raise
        _say(explain_os_error(error))
        sys.exit(2)


@contextmanager
def user_errors() -> Iterator[None]:
    """Messages on standard error; errors of the user in one line, Ctrl-C with exit status 130."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    for noisy in ("absl", "transformers", "accelerate", "datasets", "httpx", "filelock"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # the project's own messages say what happens
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with one_line_errors(Path(sys.argv[0]).stem):
        try:
            yield
        except KeyboardInterrupt:
            sys.exit(130)
