"""The reward of a run, taken up again: `best_of` and `reweigh.py` need not be told what the run's `config.yaml` knows.

On their command lines `reward.…=` names keys of a reward that is read later, so Hydra cannot know them beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

_SETTING = "finegrained_rlhf.rewards.ComponentConfig"


def opened(arguments: Iterable[str]) -> list[str]:
    """Command-line arguments with `++` before each `reward.…=`: Hydra then takes keys that no YAML file has.

    A misspelt component is still an error: the reward itself refuses it.
    """
    return [f"++{argument}" if argument.startswith("reward.") else argument for argument in arguments]


def with_reward_of_run(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a job that may choose by a reward, with that reward filled in.

    Where no reward is named, it is the one in the `config.yaml` of the run that `checkpoint` lies in, with the keys of
    `reward` that are given in place of its own. Nothing changes where nothing is to be chosen, or no run with a reward
    is found: the job says then what it misses.
    """
    reward, checkpoint = config.get("reward"), config.get("checkpoint")
    if "best_of" not in config or checkpoint is None or "_target_" in (reward or {}):
        return config
    if config["best_of"] == 1 and reward is None:
        return config
    found = _reward_of(Path(checkpoint))
    return config if found is None else {**config, "reward": _merged(found, reward or {})}


def _reward_of(checkpoint: Path) -> dict[str, Any] | None:
    """The reward of the run that a run directory, checkpoint or exported policy belongs to."""
    for directory in (checkpoint, *checkpoint.parents[:3]):  # RUN/checkpoints/step_N/policy
        run = RunDirectory(directory)
        if run.config_path.is_file():
            return run.read_config().get("reward")
    return None


def _merged(reward: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    made = _overlaid(reward, changes)
    settings = made.get("settings") or {}
    return {**made, "settings": {name: {"_target_": _SETTING, **setting} for name, setting in settings.items()}}


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        made[key] = _overlaid(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return made
