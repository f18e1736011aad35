"""What every script does around its job: resolve the configuration, prepare, build, run, and say errors in one line."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.run_directory import RunDirectory


@contextmanager
def user_errors() -> Iterator[None]:
    """Messages on standard error; a user's error becomes one line and exit code 2, Ctrl-C exit code 130."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    for noisy in ("transformers", "accelerate", "datasets", "httpx", "filelock"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    quiet_transformers()
    try:
        yield
    except FineGrainedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def run_app(cfg: DictConfig) -> None:
    """Run the job that a composed configuration describes."""
    with user_errors():
        run_config(cfg)


def run_config(cfg: DictConfig) -> Any:
    """Prepare, build and run; returns what the job returns. Raises FineGrainedError on a user's error."""
    config = resolved(cfg)
    steps = config.pop("prepare", None) or []
    processes = Processes()
    if processes.is_main:
        for step in [steps] if isinstance(steps, dict) else steps:
            build(step).run()
    processes.barrier()
    job = build(config)
    if processes.is_main and "resume" in config:
        RunDirectory(config["output_dir"]).write_config({"prepare": steps, **config}, config["resume"])
    return job.run()


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved.

    Raises:
        ConfigError: a key must be given and is not, or an interpolation points nowhere.
    """
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError(f"give a value for {', '.join(f'{key}=…' for key in missing)}  (--help explains the keys)")
    try:
        container = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def build(config: dict[str, Any]) -> Any:
    """The object that a mapping with `_target_` describes.

    Raises:
        FineGrainedError: what its constructor refuses; an unknown or missing key, or an unknown `_target_`.
    """
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, FineGrainedError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ConfigError(_explain(error)) from None


def _explain(error: InstantiationException) -> str:
    """One line for what went wrong while an object was built."""
    lines = str(error).splitlines()
    where = next((line.split("full_key:")[1].strip() for line in lines if "full_key:" in line), "")
    reason = str(error.__cause__ or lines[0]).splitlines()[0]
    match = re.search(r"(unexpected keyword argument|missing \d+ required .*argument\w*:?) (.*)", reason)
    if match:
        reason = f"{'unknown key' if 'unexpected' in match.group(1) else 'missing key'} {match.group(2)}"
    return f"{where}: {reason}" if where else reason


def quiet_transformers() -> None:
    """No progress bars and no notices of transformers: the project's own bars and messages tell what happens."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
