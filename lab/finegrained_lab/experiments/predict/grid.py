"""Many reward models of one world, fault by size by noise, and what each component says of the texts it is shown.

A reward has three components. A fault spoils the labels of one of them, so that the other two are those of the reward
without a fault of the same size and noise: they are trained once. A component that is scored is not trained again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.predict.faults import COMPONENT, AnnotateWithFault, Fault
from finegrained_lab.experiments.predict.texts import Shown, read_shown
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed
from finegrained_rlhf.launch.build import build
from finegrained_rlhf.launch.steps import Step, run_job
from finegrained_rlhf.runtime.process_config import OneProcess

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


def components_of(size: str, noise: float, fault: Fault) -> dict[str, Component]:
    """The components of a reward, by kind."""
    return {
        kind: Component(kind, size, noise, fault if COMPONENT[fault] == kind else "none") for kind in KINDS
    }


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
        train: arguments of `train-reward-model` by kind, and `all`.
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
    changed: int = 24
    bought: int = 12
    edits: int = 40
    seed: Seed = 0

    def run(self) -> None:
        """Train and score whatever is not there, one component after the other."""
        shown = self.shown()
        jobs: dict[str, dict[str, Any]] = {}
        for component in self.components():
            path = Path(self.output_dir) / "scores" / f"{component.name}.json"
            if not path.is_file():
                self._train(component, jobs)
                write_json(path, self._scored(component, shown))
                print(f"scored {component.name}", flush=True)

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
        return list(dict.fromkeys(one for reward in rewards for one in components_of(*reward).values()))

    def directory(self, component: Component) -> Path:
        """Where the model of a component lies."""
        return Path(self.output_dir) / "models" / component.name

    def _feedback(self, component: Component, source: str, name: str) -> Path:
        path = Path(self.output_dir) / "feedback" / f"{component.fault}_{component.noise:g}_{name}.json"
        if not path.is_file():
            AnnotateWithFault(source, str(path), component.fault, component.noise, self.seed).run()
        return path

    def _train(self, component: Component, jobs: dict[str, dict[str, Any]]) -> None:
        key = f"{component.kind} {component.fault == 'blind'}"
        if key not in jobs:
            arguments = ["experiment=factworld/reward_model", f"reward_model={component.kind}"]
            arguments += [*self.train.get("all", ()), *self.train.get(component.kind, ())]
            arguments += ["reward_model.passage_tokens=0"] if component.fault == "blind" else []
            jobs[key] = Step("train", {"script": "train_reward_model", "args": arguments}).job
        directory = self.directory(component)
        values = {
            "data": str(self._feedback(component, self.outputs, "train")),
            "validation_data": str(self._feedback(component, self.outputs_dev, "dev")),
            "model": self.models[component.size],
            "output_dir": str(directory),
            "seed": self.seed,
        }
        run_job(build({**jobs[key], **values}), OneProcess())
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)

    def _scored(self, component: Component, shown: Shown) -> dict[str, Any]:
        """Accuracy on dev labels, and by question and text the segments with their values."""
        from reward_models.scorers import SegmentScorer, SequenceScorer

        directory = str(self.directory(component))
        scorer = (SequenceScorer if component.kind == "completeness" else SegmentScorer)(directory, batch_size=64)
        scorer.setup("cpu")
        texts = list(shown.texts())
        scores = scorer.score([shown.prompts[name] for name, _ in texts], [text for _, text in texts])
        values: dict[str, dict[str, list[Any]]] = {}
        for (name, text), spans, row in zip(texts, scores.spans, scores.values, strict=True):
            values.setdefault(name, {})[text] = [[*span, value] for span, value in zip(spans, row, strict=True)]
        return {
            "component": vars(component),
            "dev": read_json(Path(directory) / "metrics.json")["dev"],
            "values": values,
        }
