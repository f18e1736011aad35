"""What is wrong with a command line, with a file of configurations or with the file system, each in one line.

Exit status: 0 done; 1 it ran and something failed (points of a sweep, findings of the doctor, an error of ours, with
its traceback); 2 the user's mistake, or something outside the code that is wrong; 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.launch.checks.experiments import group_and_option, options
from finegrained_rlhf.launch.checks.nearest import suggestion
from finegrained_rlhf.launch.command_line import CommandLine, read_command_line
from finegrained_rlhf.models.quiet import silence_transformers

INSTALL = "pip install -e '.[{extra}]' in a checkout"
_COMPOSES = "hydra._internal.config_loader_impl"
"""The module in which Hydra reads and merges configurations, whatever exception it ends in."""


def is_of_configuration(error: Exception) -> bool:
    """Whether a command line, or the files that it names options of, could not be made a configuration."""
    if isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError):
        return True
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__") == _COMPOSES for frame in frames)


def explain_command_line(error: BaseException, command: str, line: CommandLine) -> str:
    """One line for what Hydra, omegaconf or PyYAML found wrong with the command line or the files of a command."""
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read as KEY=VALUE; a KEY has letters of ASCII, digits and any of _ . - / @"
    if isinstance(error, yaml.YAMLError):
        return _explain_yaml(error)
    if isinstance(error, UnicodeDecodeError):
        return f"{_not_utf_8(line)}: not UTF-8 text"
    if isinstance(error, RecursionError):
        return "a configuration names itself, or one that names it, among its defaults"
    if isinstance(error, ValueError) and "Config group override must be" in str(error):
        return _not_an_option(command, line)
    if isinstance(error, GrammarParseError) or isinstance(error.__cause__, GrammarParseError):
        return f"an interpolation cannot be read: {(str(error) or str(error.__cause__)).splitlines()[0]}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if match := re.search(r"You must specify '([^']+)'.*Available options: (.*)", " ".join(lines)):
        return f"give {match.group(1)}=…; expected one of {', '.join(match.group(2).split())}"
    cause = str(error.__cause__ or "").split("\n")[0]
    text = " ".join(lines)
    if match := re.search(r"Could not override '([^']+)'", text):
        if "not in struct" in cause or "No match in the defaults list" in text:
            meant = _meant(match.group(1), error, command, line)
            return f"unknown key {match.group(1)!r}{meant} (--help lists the keys)"
    if match := re.search(r"Could not load 'hydra/launcher/(joblib|submitit)", text):
        extra = {"joblib": "sweeps", "submitit": "slurm"}[match.group(1)]
        return f"the launcher needs {match.group(1)}: {INSTALL.format(extra=extra)}, or give hydra/launcher=basic"
    listed = r"(?:.*Available options in '[^']+': (.*?) Config search)?"
    if match := re.search(r"Could not find '([^']+/[^']+)'" + listed, text):
        group, option = group_and_option(match.group(1))
        if known := options(group, command, line.config_directory) or (match.group(2) or "").split():
            return f"{group}={option} does not exist; expected one of {', '.join(known)}"
    message = " ".join([*lines[:2], cause if cause not in text else ""])
    return message.partition("Config search path:")[0].strip()


def _meant(key: str, error: BaseException, command: str, line: CommandLine) -> str:
    """Which key an unknown one may stand for, by the configuration with the groups that were chosen."""
    cfg = getattr(error, "configuration", None)
    if cfg is not None and OmegaConf.select(cfg, key.rpartition(".")[0] or "hydra", default=None) != {}:
        # (a value is replaced by an empty mapping before a key below it is found to be unknown)
        keys: Any = OmegaConf.to_container(OmegaConf.masked_copy(cfg, [*cfg.keys() - {"hydra"}]))
        return suggestion(key, keys)
    from finegrained_rlhf.launch.checks.help import composed, groups

    try:
        taken = dict(groups(command, line.config_directory))
        chosen = tuple(word for word in line.overrides if word.lstrip("+").partition("=")[0] in taken)
        return suggestion(key, composed(command, replace(line, overrides=chosen)))
    except (HydraException, OmegaConfBaseException, OSError, yaml.YAMLError):
        return ""  # a hint, of a configuration in which more is wrong


def _explain_yaml(error: yaml.YAMLError) -> str:
    """The file, the line and what is wrong there, of a file that is no YAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:  # a letter that YAML does not allow
        return f"file {getattr(error, 'name', '?')}: not valid YAML ({getattr(error, 'reason', error)})"
    problem = getattr(error, "problem", None) or getattr(error, "context", error)
    return f"file {mark.name}, line {mark.line + 1}: not valid YAML ({problem})"


def _not_utf_8(line: CommandLine) -> str:
    """The user's file that cannot be decoded."""
    for path in sorted(Path(line.config_directory or ".").rglob("*.yaml")):
        try:
            path.read_text(encoding="utf-8") if path.is_file() else ""
        except UnicodeDecodeError:
            return f"file {path}"
    return "a configuration"


def _not_an_option(command: str, line: CommandLine) -> str:
    """The argument that gives a group a number or a truth value where it takes an option's name."""
    for word in line.overrides:
        group, _, value = word.lstrip("+").partition("=")
        known = options(group, command, line.config_directory) if group else []
        if known and re.fullmatch(r"null|true|false|[-+\d.e_]*\d[-+\d.e_]*", value.lower()):
            return f"{group}={value} does not exist; expected one of {', '.join(known)}"
    return "a group takes the name of an option (--help lists them)"


def explain_os_error(error: OSError) -> str:
    """One line for what the file system refused."""
    reason = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error)).lower()
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    if not names and error.errno == errno.ENOSPC:
        return f"{reason}: that of the working directory, {Path.cwd()}, or of temporary files, {tempfile.gettempdir()}"
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
