"""The reward of a run, taken up again: `best_of` and `finegrained reweigh` need not be told what the run's
`config.yaml` knows.

On their command lines `reward.…=` names keys of a reward that is read later, so Hydra cannot know them beforehand.
The run may be a stranger's: what its reward names is checked before anything is imported (`checks/foreign.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from finegrained_rlhf.launch.checks.foreign import check_foreign
from finegrained_rlhf.runtime.directory.run_directory import run_of_model, seen_from_here

logger = logging.getLogger(__name__)

_SETTING = "finegrained_rlhf.rewards.ComponentConfig"


def opened(arguments: Iterable[str]) -> list[str]:
    """Command-line arguments with `++` before each `reward.…=`: Hydra then takes keys that no YAML file has.

    A misspelt component is still an error: the reward itself refuses it.
    """
    return [f"++{argument}" if argument.startswith("reward.") else argument for argument in arguments]


def with_reward_of_run(config: dict[str, Any], trusted: Collection[str] = ()) -> dict[str, Any]:
    """The configuration of a job that may choose by a reward, with that reward filled in.

    Where no reward is named, it is the one in the `config.yaml` of the run that `checkpoint` lies in, with the keys of
    `reward` that are given in place of its own; its paths lead from the directory that the run was started in. Nothing
    changes where nothing is to be chosen, or no run with a reward is found: the job says then what it misses.

    Args:
        config: resolved.
        trusted: classes beside the project's own that the run's reward may name.

    Raises:
        DataError: the run's configuration cannot be read.
        ConfigError: its reward names a class that is not admitted.
    """
    reward, checkpoint = config.get("reward"), config.get("checkpoint")
    if "best_of" not in config or checkpoint is None or "_target_" in (reward or {}):
        return config
    if config["best_of"] == 1 and reward is None:
        return config
    run = run_of_model(checkpoint)
    made = {} if run is None else run.read_config()
    of_run = made.get("reward")
    if run is None or not isinstance(of_run, Mapping):
        return config
    check_foreign(of_run, "reward", run.config_path, trusted)
    logger.info("the reward is that of %s", run.config_path)
    return {**config, "reward": _merged(seen_from_here(run, made, of_run), reward or {})}


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
