"""What every script does around its job: messages, quiet libraries, and a user's errors in one line.

Every script imports it right after hydra; importing it already changes where modules are found and how mistakes on the
command line are shown.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

# Python looks for modules beside the script first, where evaluate.py would hide the package of that name. They come
# last here, and a user's own modules (`_target_: my_rewards.Politeness`) are found in the working directory.
_SCRIPTS = str(Path(__file__).resolve().parent)
sys.path[:] = [path for path in sys.path if str(Path(path or ".").resolve()) != _SCRIPTS] + [os.getcwd(), _SCRIPTS]

from _points import use_own_directory  # noqa: E402

from finegrained_rlhf.core.errors import FineGrainedError  # noqa: E402


def run_app(cfg: DictConfig) -> None:
    """Run the job that a composed configuration describes; the jobs of a multirun get a directory each."""
    use_own_directory(cfg)
    with user_errors():
        from _steps import run_config  # takes seconds to import: --help and mistakes need not wait for it

        run_config(cfg)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An exception hook that says a mistake on the command line in one line."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        _say(_explain_command_line(error))
    elif isinstance(error, BrokenPipeError):  # `--help | head`: whoever read standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    else:
        sys.__excepthook__(kind, error, trace)


os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra hands its errors on instead of printing them itself
sys.excepthook = _show


def _explain_command_line(error: BaseException) -> str:
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
        if "not in struct" in cause:
            return f"unknown key {match.group(1)!r} (--help lists the keys)"
    if "Could not load 'hydra/launcher/joblib'" in text:
        return "the launcher needs joblib: pip install 'finegrained-rlhf[sweeps]', or give hydra/launcher=basic"
    if match := re.search(r"Could not find '([^']+)/([^']+)'.*Available options in '[^']+': (.*?) Config search", text):
        return f"{match.group(1)}={match.group(2)} does not exist; expected one of {', '.join(match.group(3).split())}"
    return " ".join([*lines[:2], cause if cause not in text else ""]).strip()


def _say(message: str) -> None:
    """Print an error once: other processes wait, because the launcher ends them when the main one has spoken."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(3)
        message = f"[process {os.environ['RANK']}] {message}"
    print(f"error: {message}", file=sys.stderr)


@contextmanager
def user_errors() -> Iterator[None]:
    """Messages on standard error; a user's error becomes one line and exit code 2, Ctrl-C exit code 130."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    for noisy in ("absl", "transformers", "accelerate", "datasets", "httpx", "filelock"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    _quiet_transformers()
    try:
        yield
    except FineGrainedError as error:
        _say(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _quiet_transformers() -> None:
    """No progress bars and notices of transformers: the project's own tell what happens."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
