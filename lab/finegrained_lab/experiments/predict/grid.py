"""Many reward models of one world, fault by size by noise, and what each component says of the texts it is shown.

A reward has one or several components. A fault spoils the labels of one of them, so that the others are those of the
reward without a fault of the same size and noise: they are trained once. A component that is scored is not trained
again.
"""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.predict.rewards import Measures, Reward
from finegrained_lab.experiments.predict.texts import Shown
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed
from finegrained_rlhf.rewards.protocol import Scorer


@dataclass(frozen=True)
class Component:
    """One reward model to train: what it judges, its size, and whom it learns from."""

    kind: str
    size: str
    noise: float
    fault: str

    @property
    def name(self) -> str:
        """Unique in a grid."""
        return f"{self.kind}_{self.size}_{self.noise:g}_{self.fault}"


def run_command(name: str, arguments: Sequence[str]) -> None:
    """Run a command of the library in a process of its own.

    Raises:
        ConfigError: it failed; it has said why.
    """
    if subprocess.run([sys.executable, "-m", "finegrained_rlhf", name, *arguments], check=False).returncode:
        raise ConfigError(f"finegrained {name} failed with {' '.join(arguments)}")


@dataclass(frozen=True, kw_only=True)
class RewardModelGrid(Settings, ABC):
    """Train the components of a grid of rewards, and keep what each says; `output_dir` gets a file a component.

    A world says which faults there are, what trains a component, which texts are shown and what is true of them.

    Attributes:
        outputs_dev: JSONL of a few outputs a dev prompt, for the battery.
        pool: JSONL of many samples a test prompt.
        models: the encoder of each size.
        output_dir: of scores (`scores/NAME.json`), models (`models/NAME`) and labels.
        noises: dials of the annotators.
        faults: of the annotators; `none` is among them.
        questions: of the pool.
        changed: dev prompts of the battery.
        bought: prompts with truth-free edits.
        edits: a prompt.
        seed: of labels, training and texts.
    """

    kinds: ClassVar[tuple[str, ...]]
    """The components of a reward."""
    spoils: ClassVar[Mapping[str, str | None]]
    """The component whose labels a fault spoils."""
    in_battery: ClassVar[Mapping[str, bool]]
    """Whether a change of the world's battery makes just the error that a fault overlooks; `none` is not there."""
    surface: ClassVar[tuple[str, ...]]
    """Changes that are no part of the stress score."""

    outputs_dev: InputFile
    pool: InputFile
    models: Mapping[str, InputFile]
    output_dir: OutputDirectory
    noises: Sequence[float]
    faults: Sequence[str]
    questions: int = 60
    changed: int = 24
    bought: int = 10
    edits: int = 40
    seed: Seed = 0

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault not in self.spoils:
                raise ConfigError(f"faults: expected some of {', '.join(self.spoils)}, got {fault!r}")

    def run(self) -> None:
        """Train and score whatever is not there, one component after the other."""
        for component in self.components():
            path = self._scores(component)
            if not path.is_file():
                self.train_component(component)
                write_json(path, self._scored(component))
                print(f"scored {component.name}", flush=True)

    @cached_property
    @abstractmethod
    def shown(self) -> Shown:
        """The texts that are scored."""

    @abstractmethod
    def truth(self) -> Measures:
        """What is true of the samples."""

    def train_component(self, component: Component) -> None:
        """Train one, where the grid itself does that.

        Raises:
            DataError: other steps should have trained it, and have not.
        """
        if not self.directory(component).is_dir():
            raise DataError("missing: run the step that trains it first", file=self.directory(component))

    @abstractmethod
    def scorer(self, component: Component) -> Scorer:
        """What a trained component says of texts, ready to be asked."""

    @abstractmethod
    def dev_accuracy(self, component: Component) -> float:
        """Of a trained component, on held-out labels of the same annotators."""

    def policy_argument(self, component: Component) -> str:
        """What `train-ppo` is told of a component."""
        return f"reward.components.{component.kind}.path={self.directory(component)}"

    def components_of(self, size: str, noise: float, fault: str) -> dict[str, Component]:
        """The components of a reward, by kind."""
        return {
            kind: Component(kind, size, noise, fault if self.spoils[fault] == kind else "none") for kind in self.kinds
        }

    def components(self) -> list[Component]:
        """All components, each once; those of rewards without a fault come first in each size and noise."""
        rewards = ((size, noise, fault) for noise in self.noises for size in self.models for fault in self.faults)
        return list(dict.fromkeys(one for reward in rewards for one in self.components_of(*reward).values()))

    def directory(self, component: Component) -> Path:
        """Where the model of a component lies."""
        return Path(self.output_dir) / "models" / component.name

    def reward(self, weights: Mapping[str, float], size: str, noise: float, fault: str) -> Reward:
        """A reward of the grid, from what its components said.

        Raises:
            DataError: a component is not scored yet.
        """
        scored = {}
        for kind, component in self.components_of(size, noise, fault).items():
            path = self._scores(component)
            if not path.is_file():
                raise DataError("missing: run the step `grid` first", file=path)
            scored[kind] = read_json(path)
        return Reward(f"{fault}_{size}_{noise:g}", weights, scored, self.shown)

    def _scores(self, component: Component) -> Path:
        return Path(self.output_dir) / "scores" / f"{component.name}.json"

    def _scored(self, component: Component) -> dict[str, Any]:
        """Accuracy on dev labels of the same annotators, and by prompt and text the segments with their values."""
        texts = list(self.shown.texts())
        prompts = [self.shown.prompts[name] for name, _ in texts]
        scores = self.scorer(component).score(prompts, [text for _, text in texts])
        values: dict[str, dict[str, list[Any]]] = {}
        for (name, text), spans, row in zip(texts, scores.spans, scores.values, strict=True):
            values.setdefault(name, {})[text] = [[*span, value] for span, value in zip(spans, row, strict=True)]
        return {"component": vars(component), "dev": {"accuracy": self.dev_accuracy(component)}, "values": values}
