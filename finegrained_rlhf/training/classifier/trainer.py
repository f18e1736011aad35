"""Training a classifier of texts by cross-entropy with the probabilities of the classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.core.records import on_device, pad_rows
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.labelled_texts import LabelledText, labels_of, read_labelled_texts
from finegrained_rlhf.models.encoders.classifier import TextClassifier
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.classifier.job import TrainClassifier
from finegrained_rlhf.training.supervised.trainer import AdditiveTrainer, SupervisedModelTrainer


@dataclass(frozen=True)
class ClassifierExample:
    """A text as the classifier reads it.

    Attributes:
        ids: token ids, special tokens included.
        shares: the probability of each class.
    """

    ids: tuple[int, ...]
    shares: tuple[float, ...]


class ClassifierTrainer(AdditiveTrainer[ClassifierExample], SupervisedModelTrainer[ClassifierExample]):
    """Trains a classifier; the loss is the mean over the texts of a step. See `SupervisedTrainer`."""

    job: TrainClassifier
    model: TextClassifier
    sums: ClassVar[int] = 3
    title = "classifier"
    headline = ("loss", "accuracy")

    def objective(self, examples: Sequence[ClassifierExample], count: float, step: int) -> tuple[Tensor, Tensor]:
        """The loss, and [3]: cross-entropy in nats, texts whose most probable class is the labels' too, texts."""
        ids, mask = pad_rows([one.ids for one in examples], self.model.pad_id)
        device = self.model.device
        logits = self.model.network(input_ids=on_device(ids, device), attention_mask=on_device(mask, device)).logits
        shares = torch.tensor([one.shares for one in examples], device=device)
        loss = F.cross_entropy(logits.float(), shares, reduction="sum")
        right = (logits.argmax(dim=-1) == shares.argmax(dim=-1)).sum()
        return loss / count, torch.stack([loss, right.float(), loss.new_tensor(float(len(examples)))])

    def means(self, sums: Tensor) -> dict[str, float]:
        """Loss and accuracy a text."""
        loss, right, count = sums.tolist()
        return {"loss": loss / count, "accuracy": right / count}

    def score(self, metrics: Mapping[str, float]) -> float:
        """What the job selects by."""
        return -metrics["loss"] if self.job.selected_by == "loss" else metrics["accuracy"]

    def results(self, dev: Mapping[str, float], exported: Path) -> dict[str, Any]:
        """The classes."""
        return {"labels": list(self.model.network.config.id2label.values())}

    @staticmethod
    def copy_of(model: TextClassifier, directory: Path) -> TextClassifier:
        """The classifier that was saved in `directory`."""
        return TextClassifier.open(directory, model.label, model.activation)


def assemble_classifier(job: TrainClassifier, processes: Processes) -> ClassifierTrainer:
    """Read the labelled texts and open an encoder with a head for their labels.

    Raises:
        DataError: a file is missing or damaged.
        ConfigError: labels that do not belong to the data.
        ModelError: no model that can classify, a tokenizer that cannot pad, or one that is not the model's.
    """
    train = read_labelled_texts(job.data)
    validation = [] if job.validation_data is None else read_labelled_texts(job.validation_data)
    labels = labels_of([*train, *validation], job.classes)
    model = TextClassifier.new(job.model, labels, job.max_length)
    examples, held_out = (_examples(model, part, labels) for part in (train, validation))
    check_vocabulary(model, [example.ids for example in (*examples, *held_out)])
    if job.shuffle_labels:
        order = np.random.default_rng(stable_hash(job.seed, "shuffled labels")).permutation(len(examples)).tolist()
        examples = [ClassifierExample(one.ids, examples[i].shares) for one, i in zip(examples, order, strict=True)]
    return ClassifierTrainer(job, model, examples, held_out, processes)


def _examples(model: TextClassifier, texts: Sequence[LabelledText], labels: Sequence[str]) -> list[ClassifierExample]:
    rows = model.encoded([text.text for text in texts])
    return [ClassifierExample(tuple(row), text.shares(labels)) for row, text in zip(rows, texts, strict=True)]
