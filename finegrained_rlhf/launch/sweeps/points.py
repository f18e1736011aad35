"""The points of a Hydra multirun: a name for each, and a directory of that name below the configured `output_dir`.

A name is made of the overrides in which the points differ, not of the job's number, so that a sweep with more values
finds the points that it has already.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from finegrained_rlhf.launch.filling import fill_defaults

_NOT_IN_A_NAME = ("experiment", "output_dir")
_OF_THE_SWEEP = "sweep."  # how points are run and compared: nothing that sets one apart
_LONGEST = 80
_HASH = 8


def own_overrides(task: Sequence[str], shared: Collection[str]) -> dict[str, str]:
    """What sets a point apart from the others of its multirun.

    Args:
        task: overrides of the point, as Hydra lists them: `KEY=VALUE`, with `+`, `++` or `~` before the key.
        shared: keys that are not swept; empty where that is not known.

    Returns:
        Values by key, without the sweep's own settings. Where nothing is known to be shared, `experiment`, `output_dir`
        and paths are left out.
    """
    pairs = [override.lstrip("+~").partition("=") for override in task]
    pairs = [pair for pair in pairs if not pair[0].startswith(_OF_THE_SWEEP)]
    if shared:
        return {key: value for key, _, value in pairs if key not in shared}
    return {key: value for key, _, value in pairs if key not in _NOT_IN_A_NAME and "/" not in value}


def point_name(own: Mapping[str, str]) -> str:
    """A directory name for a point: `relevance_0.2-seed_1`.

    Keys are shortened to as many of their last parts as tell them apart. Characters beyond letters, digits and `._+-`
    become `_`; a name that lost something by this, or by its length, ends in a hash of the overrides.
    """
    labels = _short_keys(list(own))
    text = "-".join(f"{labels[key]}_{value}" for key, value in own.items()) or "point"
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", text).strip(".")
    if name == text and len(name) <= _LONGEST:
        return name
    exact = "\n".join(f"{key}={value}" for key, value in own.items())
    return f"{name[: _LONGEST - _HASH - 1]}-{hashlib.sha256(exact.encode()).hexdigest()[:_HASH]}"


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each key's shortest dotted end that no other key has."""
    labels = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
        others = [f".{other}" for other in keys if other != key]
        labels[key] = next(end for end in ends if end == key or not any(o.endswith(f".{end}") for o in others))
    return labels


def first_point(config: DictConfig) -> list[str]:
    """The overrides of a multirun's first point, of what the command line and the configuration sweep."""
    declared = OmegaConf.select(config, "hydra.sweeper.params") or {}
    lines = [*(f"{key}={values}" for key, values in declared.items()), *config.hydra.overrides.task]
    batches = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(lines), None)
    return list(batches[0][0])


def swept_keys(config: DictConfig) -> set[str]:
    """The keys and groups to which the command line or the configuration of a multirun gives several values."""
    overrides = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
    declared = OmegaConf.select(config, "hydra.sweeper.params") or {}
    return {override.key_or_group for override in overrides if override.is_sweep_override()} | set(declared)


class SharedKeys(Callback):
    """Tells every job of a multirun which keys are not swept, by Hydra's own setting for names of directories.

    A launcher hands it to the process of a job, which composes its configuration there: it fills in defaults as here.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_the_process_of_a_job, ()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Find the keys of the command line that have one value, and hand them to the jobs."""
        overrides = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
        swept = swept_keys(config)
        shared = {override.key_or_group for override in overrides} - swept
        if swept:
            keys = ",".join(f"'{key}'" for key in sorted(shared | {"output_dir"}))
            config.hydra.overrides.hydra.append(f"hydra.job.config.override_dirname.exclude_keys=[{keys}]")


def _in_the_process_of_a_job() -> SharedKeys:
    fill_defaults()
    return SharedKeys()


def swept_overrides() -> dict[str, str]:
    """The running job's own overrides."""
    hydra = HydraConfig.get()
    return own_overrides(list(hydra.overrides.task), list(hydra.job.config.override_dirname.exclude_keys))


def use_own_directory(cfg: DictConfig, below: str = "") -> None:
    """In a multirun, give the job a directory of its own: `output_dir` becomes `output_dir/below/NAME`."""
    several = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    if several and "output_dir" in cfg and not OmegaConf.is_missing(cfg, "output_dir"):
        cfg.output_dir = str(Path(cfg.output_dir, below, point_name(swept_overrides())))
