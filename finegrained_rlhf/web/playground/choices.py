"""What the playground can choose from: policies and rewards below a directory, and the questions of their runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.hub import place_of_model
from finegrained_rlhf.feedback.outputs import passages_to_lists
from finegrained_rlhf.feedback.prompt_files import PromptInput, read_prompt_file
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.launch.build import build
from finegrained_rlhf.launch.checks.foreign import check_foreign
from finegrained_rlhf.launch.rewards import with_reward_of_run
from finegrained_rlhf.models.weights.files import check_language_model
from finegrained_rlhf.report.console import runs_below
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory, below_start, run_of_model, seen_from_here
from finegrained_rlhf.runtime.remote.chat import EndpointGenerator

EXAMPLES = 30
"""Questions of a run that are offered."""
LONGEST = 200
"""Tokens of an answer where a run does not say how long its answers are."""
ENDPOINT = "the endpoint"
"""Name of the policy that `play` gives."""
_LARGEST = 64 * 2**20
"""Bytes of the largest file that questions are taken from."""
_WRITES = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration)$")
_REWARD = re.compile(r"^reward:\s*$", re.MULTILINE)


class Choices:
    """The runs and models below a directory, by their paths below it.

    Args:
        directory: resolved; nothing outside it is listed or opened by name.
        trusted: classes beside the project's own that a run's reward may name, such as one that asks a server.
        endpoint: a model behind an endpoint, which is one more policy.
        named: further policies, each name with its directory; a policy below the directory by that name is not offered.
    """

    def __init__(
        self,
        directory: Path,
        trusted: Sequence[str] = (),
        endpoint: EndpointGenerator | None = None,
        named: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.directory, self.trusted, self.endpoint, self.named = directory, tuple(trusted), endpoint, named

    def policies(self) -> list[str]:
        """Runs with an exported policy, other directories with a language model, those named, and the endpoint."""
        runs = list(runs_below(self.directory))
        exported = [run for run in runs if (run / "policy" / "config.json").is_file()]
        below = [str(path.relative_to(self.directory)) for path in (*exported, *self._models(set(runs)))]
        known = [*(name for name in below if name not in self.named), *self.named]
        return known if self.endpoint is None else [*known, ENDPOINT]

    def rewards(self) -> list[str]:
        """Runs that have a reward; the one that trained last comes first."""
        runs = [run for run in runs_below(self.directory) if _names_reward(RunDirectory(run).config_path)]
        runs.sort(key=lambda run: RunDirectory(run).config_path.stat().st_mtime, reverse=True)
        return [str(run.relative_to(self.directory)) for run in runs]

    def with_several(self, names: Sequence[str]) -> str:
        """The first of these runs whose reward has several components to weigh; else the first; "" of none."""
        for name in names:
            with suppress(DataError):
                if len(self.components(name)) > 1:
                    return name
        return next(iter(names), "")

    def policy(self, name: str) -> Path:
        """The directory of a policy.

        Raises:
            DataError: the name leads out of the directory, and is none of those named.
            ModelError: there is no policy.
        """
        path = self.named[name] if name in self.named else self._below(name)
        check_language_model(str(path))
        return path

    def reward(self, name: str) -> RewardConfig:
        """The reward of a run, of classes of this project alone, as `best_of` takes it up.

        Raises:
            DataError: it is no run with a reward, or its configuration cannot be read.
            ConfigError: it names a class that is not admitted, or cannot be built.
        """
        self.components(name)
        asked = {"checkpoint": str(self._below(name)), "best_of": 2}
        reward = build(with_reward_of_run(asked, self.trusted)["reward"])
        if not isinstance(reward, RewardConfig):
            raise ConfigError(f"{name}: expected the reward of a training run, got {type(reward).__name__}")
        return reward

    def components(self, name: str) -> dict[str, Mapping[str, Any]]:
        """The configuration of each component of a run's reward, with paths as they lead from here.

        Raises:
            DataError: it is no run with a reward, or its configuration cannot be read.
        """
        config = self._config(name)
        given = seen_from_here(RunDirectory(self._below(name)), config, _mapping(config, "reward", "components"))
        if not given:
            raise DataError("expected a run with reward.components", file=name)
        return {key: component for key, component in given.items() if isinstance(component, Mapping)}

    def initial(self, name: str) -> str | None:
        """The policy that a run began with, where it lies below the directory; None where not, or it is not known."""
        try:
            run, config = RunDirectory(self._below(name)), self._config(name)
        except DataError:
            return None
        path = _mapping(config, "policy").get("path")
        places = below_start(run, config, path, self.directory) if isinstance(path, str) else []
        return next((str(one.resolve().relative_to(self.directory)) for one in places if one.is_dir()), None)

    def configuration(self, name: str) -> Path:
        """The file that says what a run's reward is.

        Raises:
            DataError: the name leads out of the directory.
        """
        return RunDirectory(self._below(name)).config_path

    def longest(self, name: str) -> int:
        """The longest answer that a run trained on, in tokens, end of sequence included."""
        longest = _mapping(self._config(name), "rollout").get("max_new_tokens")
        return longest if isinstance(longest, int) and longest > 0 else LONGEST

    def taxonomy(self, name: str) -> Taxonomy:
        """What a run's reward models learnt to find; QA-FEEDBACK's taxonomy where that is not known.

        Raises:
            DataError: it is no run with a reward.
            ConfigError: a reward model's run declares something that is no taxonomy.
        """
        for component in self.components(name).values():
            path = component.get("path")
            trained = run_of_model(path) if isinstance(path, str) else None
            declared = None if trained is None else trained.read_config().get("taxonomy")
            if trained is not None and isinstance(declared, Mapping):
                check_foreign(declared, "taxonomy", trained.config_path)
                taxonomy = build(declared)
                if isinstance(taxonomy, Taxonomy):
                    return taxonomy
        return QA_FEEDBACK

    def examples(self, name: str) -> list[dict[str, Any]]:
        """The first questions of a run's validation data, as rows of a prompt file; [] where they cannot be read."""
        run, config = RunDirectory(self._below(name)), self._config(name)
        for key in ("validation_data", "data"):
            path = config.get(key)
            for file in below_start(run, config, path, self.directory) if isinstance(path, str) else ():
                if file.is_file() and file.stat().st_size <= _LARGEST:
                    try:
                        return [prompt_row(item) for item in read_prompt_file(file)[:EXAMPLES]]
                    except FineGrainedError:
                        continue
        return []

    def _config(self, name: str) -> Mapping[str, Any]:
        return RunDirectory(self._below(name)).read_config()

    def _below(self, name: str) -> Path:
        with suppress(OSError, ValueError):  # names that no file can have
            path = (self.directory / name).resolve(strict=True)
            if path.is_relative_to(self.directory):
                return path
        raise DataError(f"expected a directory below {self.directory.name}, got {name!r}")

    def _models(self, runs: set[Path]) -> Iterator[Path]:
        for folder, children, files in os.walk(self.directory):
            path = Path(folder)
            children[:] = [] if path in runs else sorted(name for name in children if not name.startswith("."))
            if "config.json" in files and path not in runs:
                children.clear()
                if _is_language_model(path):
                    yield path


def named_policies(names: Sequence[str]) -> dict[str, Path]:
    """Where policies lie that the server's owner names: Hub names (`org/name`, `org/name@revision`) or directories.

    Raises:
        ModelError: one is no language model, has no weights as safetensors, or is neither cached nor to be fetched.
    """
    places = {name: place_of_model(name).absolute() for name in names}
    for place in places.values():
        check_language_model(str(place))
    return places


def prompt_row(item: PromptInput) -> dict[str, Any]:
    """A prompt as the row that `prompt_of_row` reads; `text` alone where it has neither question nor messages."""
    known = item.metadata
    if item.messages:
        return {"id": item.id, "messages": [vars(message) for message in item.messages]}
    if "question" in known and "turns" not in known:
        passages = passages_to_lists(known.get("passages", ()))
        return {"id": item.id, "question": known["question"], "passages": passages, "text": item.text}
    return {"id": item.id, "text": item.text}


def _is_language_model(path: Path) -> bool:
    """Whether a model says that it writes text, told by its configuration: transformers is not imported for a list."""
    try:
        config = read_json(path / "config.json")
    except DataError:
        return False
    named = config.get("architectures") if isinstance(config, Mapping) else None
    return isinstance(named, list) and any(_WRITES.search(str(name)) for name in named)


def _names_reward(config: Path) -> bool:
    """Whether a configuration has a reward, told by its text: a directory may hold thousands of them."""
    try:
        return _REWARD.search(config.read_text("utf-8", "replace")) is not None
    except OSError:
        return False


def _mapping(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = config.get(key)
        config = value if isinstance(value, Mapping) else {}
    return config
