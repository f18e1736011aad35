"""Training a reward model: one step, validation, and what a checkpoint keeps.

Satisfies the training loop's `Trainable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.runtime.loop.forecast import first_measured
from finegrained_rlhf.runtime.loop.trainer import ModelTrainer
from finegrained_rlhf.runtime.loop.types import LoopConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from reward_models.config import RewardBatchConfig, Selection
from reward_models.data.examples import (
    BatchPlan,
    RewardExample,
)
from reward_models.encoders.inputs import EncodedInput, batches_by_length
from reward_models.encoders.models import RewardModel, load_reward_model
from reward_models.record import LEAST_STD
from reward_models.training.layers import LayerConfig
from reward_models.training.objectives import Counts, LabelWeights, labelled_items, reward_model_objective


class RewardModelTrainer(ModelTrainer):
    """Trains a reward model on labelled examples.

    The gradient of a step is that of the mean loss a labelled segment (or pair) over the whole batch, so that neither
    micro-batches nor processes change it.

    Args:
        model: to train.
        train: labelled examples, at least one.
        validation: labelled examples; may be empty.
        batches: batch sizes.
        optimizer: rates and schedule.
        total_steps: that the schedule spans.
        processes: of the run.
        seed: of the run.
        layers: which parameters are trained, and at what rates; None is all, at one rate.
        weights: of the labels of segments in the training loss; metrics never count them. None is 1 each.
        selected_by: the validation metric that the best checkpoint has most of, or `loss`, of which it has least; None
            takes the metric that the model's kind names.

    Raises:
        ConfigError: more layers are frozen than the model has.
        DataError: there is nothing to train on.
    """

    def __init__(
        self,
        model: RewardModel,
        train: Sequence[RewardExample],
        validation: Sequence[RewardExample],
        batches: RewardBatchConfig,
        optimizer: OptimizerConfig,
        total_steps: int,
        processes: Processes,
        seed: int,
        layers: LayerConfig | None = None,
        weights: LabelWeights | None = None,
        selected_by: Selection | None = None,
    ) -> None:
        if not train:
            raise DataError("no example is left to train on after labelling")
        self.model, self.processes, self.batches = model.to(processes.device), processes, batches
        self.validation = sorted(validation, key=lambda example: example.length)
        self.selected_by: str = selected_by or model.record.definition.selected_by
        self.plan = BatchPlan(train, batches.batch_size, seed)
        self.weights = weights or LabelWeights()
        rates = (layers or LayerConfig()).prepare(model)
        self.optimizer = optimizer.build(model.named_parameters(), total_steps, processes, rates.__getitem__)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step on the batch of `step`. Returns loss and accuracy before it, gradient norm and rate."""
        examples = self.plan.batch(step)
        items = labelled_items(examples)
        share = [examples[i] for i in self.processes.share(len(examples))]
        self.model.train()
        counts = Counts.zero()
        for micro in first_measured(list(in_batches(share, self.batches.micro_batch_size or max(1, items)))):
            with self.processes.autocast():
                loss, micro_counts = reward_model_objective(self.model, micro, self.weights)
            (loss / items).backward()  # type: ignore[no-untyped-call]
            counts += micro_counts
        norm = self.optimizer_step(step)
        self.model.eval()
        metrics = Counts(self.processes.sum_(counts.values)).metrics(self.model.record.definition.form)
        return {**metrics, "items": items, "gradient_norm": norm, "lr": self.optimizer.lr(step)}

    @torch.no_grad()
    def validate(self, step: int) -> dict[str, float]:
        """Loss, accuracy, class-balanced metrics or spread on the validation examples; `score` is what is selected by.

        It is the metric `selected_by`, or less the loss; and less 1 where the scores of whole answers lie closer
        together than `LEAST_STD`: a model that has collapsed still orders pairs above chance by rounding, and must not
        be kept while there is one that has learnt.
        """
        if not self.validation:
            return {}
        share = [self.validation[i] for i in self.processes.share(len(self.validation))]
        counts = Counts.zero()
        for batch in in_batches(share, self.batches.eval_batch_size):
            with self.processes.autocast():
                counts += reward_model_objective(self.model, batch)[1]
        kind = self.model.record.definition
        metrics = Counts(self.processes.sum_(counts.values)).metrics(kind.form)
        collapsed = metrics.get("score_std", math.inf) < LEAST_STD
        chosen = -metrics["loss"] if self.selected_by == "loss" else metrics[self.selected_by]
        return {"score": chosen - collapsed, **metrics}

    @staticmethod
    def copy_of(model: RewardModel, directory: Path) -> RewardModel:
        """The reward model that was saved in `directory`."""
        return load_reward_model(directory)


def in_batches(examples: Sequence[RewardExample], size: int) -> Iterator[Sequence[RewardExample]]:
    """Runs of examples with at most `size` items together; one example with more items is a run of its own."""
    start = items = 0
    for i, example in enumerate(examples):
        if i > start and items + example.items > size:
            yield examples[start:i]
            start, items = i, 0
        items += example.items
    if start < len(examples):
        yield examples[start:]


@torch.no_grad()
def start_raw_scores(model: RewardModel, inputs: Sequence[EncodedInput], batch_size: int) -> Callable[[], torch.Tensor]:
    """Launch the scoring of n whole answers in batches by length.

    Returns:
        A function that waits for it and gives the raw scores, fp32 [n] on the CPU, in the order of `inputs`.
    """
    order: list[int] = []
    parts = []
    for rows, batch in batches_by_length(inputs, batch_size, model.pad_id, model.device):
        order += rows
        parts.append(model.answer_scores(batch))

    def collect() -> torch.Tensor:
        scores = torch.zeros(len(inputs))
        if parts:
            scores[order] = torch.cat(parts).cpu()
        return scores

    return collect


def raw_scores(model: RewardModel, inputs: Sequence[EncodedInput], batch_size: int) -> torch.Tensor:
    """Raw scores of whole answers, fp32 [n] on the CPU, in the order of `inputs`; computed in batches by length."""
    return start_raw_scores(model, inputs, batch_size)()


@dataclass(frozen=True)
class Assembled:
    """What a reward model is trained with.

    Attributes:
        trainer: with the examples to validate on.
        loop: settings of the training loop.
        train_records: feedback to train on.
        validation_records: feedback to select by.
        train_examples: how many examples the first gave.
        validation: examples of the second, in their order.
    """

    trainer: RewardModelTrainer
    loop: LoopConfig
    train_records: Sequence[FeedbackRecord]
    validation_records: Sequence[FeedbackRecord]
    train_examples: int
    validation: Sequence[RewardExample]
