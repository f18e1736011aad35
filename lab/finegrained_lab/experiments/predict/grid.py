"""Many reward models of one world, fault by size by noise, and what each component says of the texts it is shown.

A reward has three components. A fault spoils the labels of one of them, so that the other two are those of the reward
without a fault of the same size and noise: they are trained once. The last step's
model is kept, whatever it is worth. A component that is scored is not trained again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.predict.faults import COMPONENT, AnnotateWithFault, Fault
from finegrained_lab.experiments.predict.texts import Shown, read_shown
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed

KINDS = ("relevance", "factuality", "completeness")


@dataclass(frozen=True)
class Component:
    """One reward model to train: what it judges, its size, and whom it learns from."""

    kind: str
    size: str
    noise: float
    fault: Fault

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


def components_of(size: str, noise: float, fault: Fault) -> dict[str, Component]:
    """The components of a reward, by kind."""
    return {kind: Component(kind, size, noise, fault if COMPONENT[fault] == kind else "none") for kind in KINDS}


@dataclass(frozen=True)
class RewardModelGrid(Settings):
    """Train the components of a grid of rewards, and keep what each says; `output_dir` gets a file a component.

    Attributes:
        outputs: JSONL of four outputs a training question.
        outputs_dev: the same of dev questions, for dev accuracy and the battery.
        pool: JSONL of many samples a test question.
        models: the encoder of each size.
        output_dir: of scores (`scores/NAME.json`), models (`models/NAME`) and feedback.
        noises: dials of the annotators (`Annotator.noise`).
        faults: of the annotators; `none` is among them.
        train: arguments of `train-reward-model` of `all` and by kind.
        kinds: of components that are trained; a grid may be made in parts.
        questions: of the pool.
        changed: dev questions of the battery.
        bought: questions with truth-free edits.
        edits: a question.
        seed: of labels, training and texts.
    """

    outputs: InputFile
    outputs_dev: InputFile
    pool: InputFile
    models: Mapping[str, InputFile]
    output_dir: OutputDirectory
    noises: Sequence[float]
    faults: Sequence[Fault]
    train: Mapping[str, Sequence[str]]
    questions: int = 60
    kinds: Sequence[str] = KINDS
    changed: int = 24
    bought: int = 10
    edits: int = 40
    seed: Seed = 0

    def run(self) -> None:
        """Train and score whatever is not there, one component after the other."""
        shown = self.shown
        for component in self.components():
            path = Path(self.output_dir) / "scores" / f"{component.name}.json"
            if not path.is_file():
                self._train(component)
                write_json(path, self._scored(component, shown))
                print(f"scored {component.name}", flush=True)

    @cached_property
    def shown(self) -> Shown:
        """The texts that are scored."""
        return read_shown(
            self.pool,
            self.outputs_dev,
            questions=self.questions,
            changed=self.changed,
            bought=self.bought,
            edits=self.edits,
            seed=self.seed,
        )

    def components(self) -> list[Component]:
        """All components, each once; those of rewards without a fault come first in each size and noise."""
        rewards = ((size, noise, fault) for noise in self.noises for size in self.models for fault in self.faults)
        made = dict.fromkeys(one for reward in rewards for one in components_of(*reward).values())
        return [one for one in made if one.kind in self.kinds]

    def directory(self, component: Component) -> Path:
        """Where the model of a component lies."""
        return Path(self.output_dir) / "models" / component.name

    def _feedback(self, fault: Fault, noise: float, source: str, name: str) -> str:
        path = Path(self.output_dir) / "feedback" / f"{fault}_{noise:g}_{name}.json"
        if not path.is_file():
            AnnotateWithFault(source, str(path), fault, noise, self.seed).run()
        return str(path)

    def _train(self, component: Component) -> None:
        directory = self.directory(component)
        values = {
            "data": self._feedback(component.fault, component.noise, self.outputs, "train"),
            "model": self.models[component.size],
            "output_dir": directory,
            "held_out": 0,
            "seed": self.seed,
        }
        own = [*self.train["all"], *self.train[component.kind], *(f"{key}={value}" for key, value in values.items())]
        blind = ["reward_model.passage_tokens=0"] if component.fault == "blind" else []
        chosen = ["experiment=factworld/reward_model", f"reward_model={component.kind}"]
        run_command("train-reward-model", [*chosen, *own, *blind])
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)

    def _scored(self, component: Component, shown: Shown) -> dict[str, Any]:
        """Accuracy on dev labels of the same annotators, and by question and text the segments with their values."""
        from reward_models import EvaluateRewardModel
        from reward_models.scorers import SegmentScorer, SequenceScorer

        directory = str(self.directory(component))
        scorer = (SequenceScorer if component.kind == "completeness" else SegmentScorer)(directory, batch_size=64)
        scorer.setup("cpu")
        texts = list(shown.texts())
        scores = scorer.score([shown.prompts[name] for name, _ in texts], [text for _, text in texts])
        values: dict[str, dict[str, list[Any]]] = {}
        for (name, text), spans, row in zip(texts, scores.spans, scores.values, strict=True):
            values.setdefault(name, {})[text] = [[*span, value] for span, value in zip(spans, row, strict=True)]
        labels = self._feedback(component.fault, component.noise, self.outputs_dev, "dev")
        report = EvaluateRewardModel(directory, labels, str(Path(directory) / "dev.json")).run()
        return {"component": vars(component), "dev": {"accuracy": report.accuracy}, "values": values}
