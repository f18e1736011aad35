"""What the playground can choose from: policies and rewards below a directory, and the questions that their runs asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError, ModelError
from finegrained_rlhf.feedback.outputs import passages_to_lists
from finegrained_rlhf.feedback.prompt_files import PromptInput, read_prompt_file
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.launch.build import build
from finegrained_rlhf.launch.checks.foreign import check_foreign
from finegrained_rlhf.launch.rewards import with_reward_of_run
from finegrained_rlhf.models.weights.files import check_language_model
from finegrained_rlhf.report.console import runs_below
from finegrained_rlhf.report.runs.record import below_start
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory, run_of_model

EXAMPLES = 30
"""Questions of a run that are offered."""
_LARGEST = 64 * 2**20
"""Bytes of the largest file that questions are taken from."""
_LONGEST = 200
"""Tokens of an answer where a run does not say how long its answers are."""


@dataclass(frozen=True)
class PolicyEntry:
    """A policy that can answer.

    Attributes:
        name: its path below the directory.
        max_new_tokens: longest answer in tokens that its run trained on.
    """

    name: str
    max_new_tokens: int = _LONGEST


class Catalogue:
    """The runs and models below a directory. Names are paths below it; a name that is not listed opens nothing.

    Args:
        directory: resolved.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def policies(self) -> list[PolicyEntry]:
        """Runs with an exported policy, then other directories with a language model, each by name."""
        runs = list(runs_below(self.directory))
        listed = [self._policy(run) for run in runs if _has_policy(run)]
        return listed + [PolicyEntry(self._name(path)) for path in self._models(set(runs)) if _has_policy(path)]

    def rewards(self) -> list[str]:
        """Runs that have a reward."""
        return [self._name(run) for run in runs_below(self.directory) if _mapping(_config(run), "reward", "components")]

    def policy(self, name: str) -> Path:
        """The directory of a policy.

        Raises:
            DataError: none of this name is listed.
        """
        return self._listed(name, [entry.name for entry in self.policies()], "policy")

    def reward(self, name: str) -> RewardConfig:
        """The reward of a run, of classes of this project alone, as `best_of` takes it up.

        Raises:
            DataError: no run of this name has a reward, or its configuration cannot be read.
            ConfigError: it names a class that is not admitted, or cannot be built.
        """
        run = self._listed(name, self.rewards(), "reward")
        reward = build(with_reward_of_run({"checkpoint": str(run), "best_of": 2, "reward": None})["reward"])
        if not isinstance(reward, RewardConfig):
            raise ConfigError(f"{run}: expected the reward of a training run, got {type(reward).__name__}")
        return reward

    def taxonomy(self, name: str) -> Taxonomy:
        """What is marked in answers that a run's reward judges: what its reward models learnt; QA-FEEDBACK's if unknown.

        Raises:
            DataError: no run of this name has a reward.
        """
        config = _config(self._listed(name, self.rewards(), "reward"))
        for component in _mapping(config, "reward", "components").values():
            path = component.get("path") if isinstance(component, Mapping) else None
            trained = run_of_model(path) if isinstance(path, str) else None
            declared = None if trained is None else _config(trained.path).get("taxonomy")
            if trained is not None and isinstance(declared, Mapping):
                check_foreign(declared, "taxonomy", trained.config_path)
                taxonomy = build(declared)
                if isinstance(taxonomy, Taxonomy):
                    return taxonomy
        return QA_FEEDBACK

    def examples(self, name: str) -> list[dict[str, Any]]:
        """The first questions of a run's validation data, as rows of a prompt file; [] where they cannot be read.

        Raises:
            DataError: no run of this name has a reward.
        """
        run = RunDirectory(self._listed(name, self.rewards(), "reward"))
        config = _config(run.path)
        for key in ("validation_data", "data"):
            path = config.get(key)
            for file in below_start(run, config, path) if isinstance(path, str) else ():
                if file.is_file() and file.stat().st_size <= _LARGEST:
                    try:
                        return [prompt_row(item) for item in read_prompt_file(file)[:EXAMPLES]]
                    except FineGrainedError:
                        continue
        return []

    def _listed(self, name: str, names: list[str], what: str) -> Path:
        if name not in names:
            raise DataError(f"no {what} of this name below {self.directory.name}: {name!r}")
        return self.directory / name

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.directory))

    def _policy(self, run: Path) -> PolicyEntry:
        longest = _mapping(_config(run), "rollout").get("max_new_tokens")
        return PolicyEntry(self._name(run), longest if isinstance(longest, int) else _LONGEST)

    def _models(self, runs: set[Path]) -> Iterator[Path]:
        for folder, children, files in os.walk(self.directory):
            path = Path(folder)
            children[:] = sorted(name for name in children if not name.startswith(".") and path / name not in runs)
            if "config.json" in files:
                children.clear()
                yield path


def prompt_row(item: PromptInput) -> dict[str, Any]:
    """A prompt as the row that `prompt_of_row` reads."""
    known, row = item.metadata, {"id": item.id}
    if item.messages:
        return {**row, "messages": [vars(message) for message in item.messages]}
    if "question" in known and "turns" not in known:
        row |= {"question": known["question"], "passages": passages_to_lists(known.get("passages", ()))}
    return {**row, "text": item.text}


def _has_policy(path: Path) -> bool:
    try:
        check_language_model(str(path))
    except ModelError:
        return False
    return True


def _config(run: Path) -> Mapping[str, Any]:
    try:
        return RunDirectory(run).read_config()
    except DataError:
        return {}


def _mapping(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = config.get(key)
        config = value if isinstance(value, Mapping) else {}
    return config
