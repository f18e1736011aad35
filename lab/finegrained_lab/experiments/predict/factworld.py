"""The grid of FactWorld: three reward models a reward, the oracle's battery, and the true error of answers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.predict.faults import COMPONENT, IN_BATTERY, AnnotateWithFault
from finegrained_lab.experiments.predict.grid import Component, RewardModelGrid, run_command
from finegrained_lab.experiments.predict.rewards import Measures
from finegrained_lab.experiments.predict.table import PredictTable
from finegrained_lab.experiments.predict.texts import Shown, free_edits
from finegrained_lab.experiments.prompts import prompt_of
from finegrained_lab.worlds.factworld.changes import BATTERY
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.factworld.grammar import split_passages
from finegrained_rlhf.factworld.oracle import judge, pool, source_of
from finegrained_rlhf.factworld.report import RATES, mean_error
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs
from finegrained_rlhf.rewards.protocol import Scorer
from finegrained_rlhf.rewards.stress.changes import StressRecord, run_changes
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter

FILLERS = ("Tell me about it.", "What is it?", "It is.", "The answer is as its question.")
"""Words of the world that state no fact."""


@dataclass(frozen=True, kw_only=True)
class FactWorldGrid(RewardModelGrid):
    """Relevance, factuality and completeness; see `RewardModelGrid`.

    Attributes:
        outputs: JSONL of four outputs a training question.
        train: arguments of `train-reward-model` of `all` and by kind; the last step's model is kept.
    """

    kinds: ClassVar = ("relevance", "factuality", "completeness")
    spoils: ClassVar = COMPONENT
    in_battery: ClassVar = IN_BATTERY
    surface: ClassVar = tuple(change.name for change in BATTERY if change.family == "surface")

    outputs: InputFile
    train: Mapping[str, Sequence[str]]

    @cached_property
    def shown(self) -> Shown:
        """Samples of test questions; answers to dev questions, changed and trivial; edits of passages."""
        samples = read_outputs(self.pool)[: self.questions]
        dev = read_outputs(self.outputs_dev)
        records = [stress_record(record) for record in dev]
        others = [stress_record(record) for record in samples]
        sentences = {record.id: record.passages[0][1:] for record in others}
        edits = {
            name: free_edits(
                name,
                own,
                [foreign for other, foreign in sentences.items() if other != name],
                FILLERS,
                count=self.edits,
                seed=self.seed,
            )
            for name, own in list(sentences.items())[: self.bought]
        }
        return Shown(
            samples,
            run_changes(records[: self.changed], BATTERY, self.seed),
            edits,
            {record.id: trivial_answers(record) for record in records[: self.questions]},
            {record.id: prompt_of(record) for record in [*samples, *dev]},
        )

    def truth(self) -> Measures:
        """Rates of errors by the oracle."""
        return factworld_truth(self.shown)

    def train_component(self, component: Component) -> None:
        """Train on feedback of annotators with the fault; the model of `blind` is not shown the passages."""
        values = {
            "data": self._feedback(component, self.outputs, "train"),
            "model": self.models[component.size],
            "output_dir": self.directory(component),
            "held_out": 0,
            "seed": self.seed,
        }
        own = [*self.train["all"], *self.train[component.kind], *(f"{key}={value}" for key, value in values.items())]
        blind = ["reward_model.passage_tokens=0"] if component.fault == "blind" else []
        chosen = ["experiment=factworld/reward_model", f"reward_model={component.kind}"]
        run_command("train-reward-model", [*chosen, *own, *blind])
        shutil.rmtree(self.directory(component) / "checkpoints", ignore_errors=True)

    def scorer(self, component: Component) -> Scorer:
        """The reward model."""
        from reward_models.scorers import SegmentScorer, SequenceScorer

        kind = SequenceScorer if component.kind == "completeness" else SegmentScorer
        scorer = kind(str(self.directory(component)), batch_size=64)
        scorer.setup("cpu")
        return scorer

    def dev_accuracy(self, component: Component) -> float:
        """On feedback of the same annotators on dev questions."""
        from reward_models import EvaluateRewardModel

        directory, labels = self.directory(component), self._feedback(component, self.outputs_dev, "dev")
        return EvaluateRewardModel(str(directory), labels, str(directory / "dev.json")).run().accuracy

    def _feedback(self, component: Component, source: str, name: str) -> str:
        path = Path(self.output_dir) / "feedback" / f"{component.fault}_{component.noise:g}_{name}.json"
        if not path.is_file():
            AnnotateWithFault(source, str(path), component.fault, component.noise, self.seed).run()  # type: ignore[arg-type]
        return str(path)


@dataclass(frozen=True)
class FactWorldPredictions(PredictTable):
    """The page of FactWorld."""

    world: ClassVar[str] = "FactWorld"
    about: ClassVar[str] = (
        "Rewards of FactWorld (open questions, answers of three forms), each of three reward models; one of "
        "them learnt from annotators who never see one kind of error (the fault), all from annotators who "
        "also err at random (the noise: of C1 labels .10 are wrong at 0.6, .31 at 1.8; of C2 .05 and .14, of "
        "C3 .09 and .27). `rambling`: nothing is unasked for; `joined`: no clause that goes on in a sentence "
        "is; `values`: no value is wrong, only what the passages do not state; `popular`: no popular value "
        "is; `brevity`, `auxiliary`: no fact is missing, none that the question does not name; `blind`: the "
        "encoder of the factuality model is not shown the passages. Each model is counted words (lengths, "
        "shares of words that the question, earlier segments or the passages have), fitted first, and a tiny "
        "BERT (32 or 64 wide) for the rest; counted words see the passages even of `blind`, which is "
        "therefore as good as none. Rewards of one size and noise share the components without a fault. "
        "Outcome: the true mean error, by the oracle, of best of n from one pool of 64 samples a question of "
        "SFT, in expectation over draws."
    )
    added: ClassVar[str | None] = "values"

    def error_of(self, line: Mapping[str, Any]) -> float:
        """The mean of three rates of errors."""
        return mean_error(line)


def factworld_truth(shown: Shown) -> Measures:
    """The oracle's counts: found and of how many, for each rate; the mean error; fewer errors are better."""
    segmenter = shared_segmenter(DEFAULT_SEGMENTER)
    counts: dict[str, dict[str, tuple[float, ...]]] = {}
    for record in shown.pool:
        source, own = source_of(record, segmenter), counts.setdefault(record.id, {})
        for text in dict.fromkeys(record.outputs):
            one = pool([judge(source, text, segmenter)])
            rates = (one.relevance_errors, one.sub_sentences, one.factual_errors, one.sentences, one.given, one.asked)
            own[text] = tuple(map(float, rates))
    return Measures(counts, _mean_error, lambda row: -(row[0] + row[2] + row[5] - row[4]))


def _mean_error(sums: Sequence[float]) -> float:
    relevance, sub_sentences, factual, sentences, given, asked = sums
    rates = (relevance / max(sub_sentences, 1), factual / max(sentences, 1), given / max(asked, 1))
    return mean_error(dict(zip(RATES, rates, strict=True)))


def stress_record(record: OutputRecord) -> StressRecord:
    """A question as the stress test sees it, a fact a sentence."""
    passages = split_passages(record.passages, shared_segmenter(DEFAULT_SEGMENTER))
    rows = tuple((passage.title, *passage.sentences) for passage in passages)
    return StressRecord(record.id, record.question, rows, record.references[0], record.outputs)


def trivial_answers(record: StressRecord) -> dict[str, str]:
    """Answers that take no skill, and the gold one."""
    segmenter = shared_segmenter(DEFAULT_SEGMENTER)
    lead = record.passages[0][1 : 1 + len(segmenter.sentences(record.gold))]
    return {"lead": " ".join(lead), "restated": record.question, "gold": record.gold}
