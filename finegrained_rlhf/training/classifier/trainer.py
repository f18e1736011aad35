"""Training a classifier of texts: one step, validation, and what a checkpoint keeps.

Satisfies the training loop's `Trainable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.core.batching import send
from finegrained_rlhf.core.records import pad_rows
from finegrained_rlhf.models.encoders.classifier import TextClassifier
from finegrained_rlhf.runtime.loop.trainer import ModelTrainer, check_finite
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.classifier.config import ClassifierBatchConfig, ClassifierSelection
from finegrained_rlhf.training.micro_batches import Sums
from finegrained_rlhf.training.order import items_of_step


@dataclass(frozen=True)
class ClassifierExample:
    """A text as the classifier reads it.

    Attributes:
        ids: token ids, special tokens included.
        shares: the probability of each class.
    """

    ids: tuple[int, ...]
    shares: tuple[float, ...]


class ClassifierTrainer(ModelTrainer):
    """Trains a classifier by cross-entropy with the probabilities of the classes, the mean over the texts of a step.

    Args:
        model: to train.
        train: at least one text.
        validation: may be empty.
        batches: batch sizes.
        optimizer: rates and schedule.
        total_steps: that the schedule spans.
        processes: of the run.
        seed: of the run.
        selected_by: what the best checkpoint has least (`loss`) or most (`accuracy`) of.
    """

    model: TextClassifier

    def __init__(
        self,
        model: TextClassifier,
        train: Sequence[ClassifierExample],
        validation: Sequence[ClassifierExample],
        batches: ClassifierBatchConfig,
        optimizer: OptimizerConfig,
        total_steps: int,
        processes: Processes,
        *,
        seed: int,
        selected_by: ClassifierSelection = "loss",
    ) -> None:
        self.model, self.processes, self.batches = model.to(processes.device).eval(), processes, batches
        self.train, self.validation, self.seed, self.selected_by = train, validation, seed, selected_by
        self._sums = Sums(self._of, 3)
        self.optimizer = optimizer.build(model.named_parameters(), total_steps, processes)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step on the texts of `step`. Returns loss and accuracy before it, gradient norm and rate."""
        size = self.batches.batch_size
        batch = items_of_step(self.train, step, size, self.seed)
        share = [batch[i] for i in self.processes.share(size)]
        self.model.train()
        sums = self._sums.backward(share, self.batches.micro_batch_size, lambda losses: losses[0] / size)
        self.model.eval()
        norm = self.optimizer_step(step)
        metrics = {**self._means(sums), "gradient_norm": norm, "lr": self.optimizer.lr(step)}
        check_finite(step, metrics, ("loss", "gradient_norm"))
        return metrics

    def validate(self, step: int) -> dict[str, float]:
        """Loss and accuracy on the held-out texts; `score` is what is selected by. Nothing without any."""
        if not self.validation:
            return {}
        share = [self.validation[i] for i in self.processes.share(len(self.validation))]
        metrics = self._means(self._sums.measure(share, self.batches.eval_batch_size, self.model.device))
        return {"score": -metrics["loss"] if self.selected_by == "loss" else metrics["accuracy"], **metrics}

    def _of(self, examples: Sequence[ClassifierExample]) -> Tensor:
        """fp32 [3]: summed cross-entropy in nats, texts whose most probable class is the labels' too, texts."""
        ids, mask = pad_rows([one.ids for one in examples], self.model.pad_id)
        device = self.model.device
        with self.processes.autocast():
            logits = self.model.network(input_ids=send(ids, device), attention_mask=send(mask, device)).logits
        shares = torch.tensor([one.shares for one in examples], device=device)
        loss = F.cross_entropy(logits.float(), shares, reduction="sum")
        right = (logits.argmax(dim=-1) == shares.argmax(dim=-1)).sum()
        return torch.stack([loss, right.float(), loss.new_tensor(float(len(examples)))])

    def _means(self, sums: Tensor) -> dict[str, float]:
        loss, right, count = self.processes.sum_(sums).tolist()
        return {"loss": loss / count, "accuracy": right / count}

    @staticmethod
    def copy_of(model: TextClassifier, directory: Path) -> TextClassifier:
        """The classifier that was saved in `directory`."""
        return TextClassifier.open(directory, model.label, model.activation)
