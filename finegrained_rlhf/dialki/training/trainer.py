"""Training DIALKI: one step, validation, and what a checkpoint keeps. BERTQA trains by the same steps.

Satisfies the training loop's `Trainable`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialki.finder import Finder, Found, KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import Chosen, passages_to_train
from finegrained_rlhf.dialki.inputs.examples import EncodedExample
from finegrained_rlhf.dialki.model.config import LossConfig
from finegrained_rlhf.dialki.model.model import DialkiModel, KnowledgeModel, load_model, read_record
from finegrained_rlhf.dialki.model.objective import Parts, objective
from finegrained_rlhf.dialki.scores import KnowledgeScore, score_answer, summary
from finegrained_rlhf.dialki.training.config import DialkiBatchConfig
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.runtime.loop.forecast import first_measured
from finegrained_rlhf.runtime.loop.trainer import ModelTrainer
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.order import items_of_step


class KnowledgeTrainer(ModelTrainer):
    """Trains a model that finds knowledge on labelled dialogues: what DIALKI and BERTQA do alike.

    The gradient of a step is that of the mean loss a dialogue over the whole batch, so that neither micro-batches nor
    processes change it (dropout draws apart). Which passages and which noise a dialogue meets follows from the seed,
    the step and the dialogue.

    Args:
        model: to train.
        train: dialogues with gold as the finder's encoder made them, at least one.
        validation: dialogues with gold in their records, made alike; may be empty.
        batches: sizes.
        losses: weights and noise.
        optimizer: rates and schedule.
        total_steps: that the schedule spans.
        processes: of the run.
        seed: of the run.
        dropout: rate everywhere in the model; None keeps the rates of the encoder and of the heads.

    Raises:
        DataError: there is nothing to train on.
    """

    def __init__(
        self,
        model: KnowledgeModel,
        train: Sequence[Any],
        validation: Sequence[Any],
        batches: DialkiBatchConfig,
        losses: LossConfig,
        optimizer: OptimizerConfig,
        total_steps: int,
        processes: Processes,
        *,
        seed: int,
        dropout: float | None = None,
    ) -> None:
        if not train:
            raise DataError("no dialogue with gold is left to train on")
        self.finder = self.new_finder(model, processes, batches)
        self.model, self.train, self.validation = self.finder.model, train, validation
        self.batches, self.losses, self.processes, self.seed = batches, losses, processes, seed
        if dropout is not None:
            set_dropout(model, dropout)
        self.optimizer = optimizer.build(model.named_parameters(), total_steps, processes)

    @staticmethod
    @abstractmethod
    def new_finder(model: Any, processes: Processes, batches: DialkiBatchConfig) -> Finder[Any]:
        """What answers the validation dialogues."""

    @staticmethod
    @abstractmethod
    def no_parts() -> Parts:
        """Parts of nothing."""

    @abstractmethod
    def choose(self, item: Any, step: int) -> Any:
        """The inputs of a dialogue that a training step takes."""

    @abstractmethod
    def loss(self, chosen: Sequence[Any], step: int) -> tuple[Tensor, Parts]:
        """The summed loss of some dialogues, a scalar [] in nats with gradient, and its parts (float64 [k])."""

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step. Returns losses before it, accuracy of the passage, gradient norm and rate."""
        started = time.perf_counter()
        size = self.batches.batch_size
        batch = items_of_step(self.train, step, size, self.seed)
        share = [self.choose(batch[i], step) for i in self.processes.share(size)]
        micro = self.batches.micro_batch_size or max(1, len(share))
        parts = self.no_parts()
        self.model.train()
        for start in first_measured(range(0, len(share), micro)):
            with self.processes.autocast():
                loss, sums = self.loss(share[start : start + micro], step)
            (loss / size).backward()  # type: ignore[no-untyped-call]
            parts += sums
        self.model.eval()
        norm = self.optimizer_step(step)
        metrics = replace(parts, values=self.processes.sum_(parts.values)).metrics()
        seconds = time.perf_counter() - started
        return {
            **metrics,
            "examples": step * size,
            "epoch": step * size / len(self.train),
            "gradient_norm": norm,
            "lr": self.optimizer.lr(step),
            "time/update_s": seconds,
            "time/examples_per_s": size / max(seconds, 1e-9),
        }

    def validate(self, step: int) -> dict[str, float]:
        """Exact match, F1 and passage accuracy on the validation dialogues; `score` is the exact match.

        With `units` whole, where an answer is a passage, it is the passage accuracy.
        """
        if not self.validation:
            return {}
        metrics = summary([score for _, score in self.answers()])
        measure = "passage_accuracy" if self.model.config.units == "whole" else "exact_match"
        return {"score": metrics[measure], **metrics}

    def answers(self) -> list[tuple[Found, KnowledgeScore]]:
        """The answer to every validation dialogue with its score, in order, in every process."""
        share = [self.validation[i] for i in self.processes.share(len(self.validation))]
        size = self.batches.eval_batch_size
        scored: list[tuple[Found, KnowledgeScore]] = []
        for start in range(0, len(share), size):
            part = share[start : start + size]
            for item, answer in zip(part, self.finder.answer(part), strict=True):
                scored.append((answer, score_answer(item.record, answer.knowledge.passage, answer.text)))
        return self.processes.gather_objects(scored)

    @staticmethod
    def copy_of(model: Any, directory: Path) -> KnowledgeModel:
        """The finder of knowledge that was saved in `directory`."""
        return load_model(directory, read_record(directory, type(model.config)), type(model))


class DialkiTrainer(KnowledgeTrainer):
    """Trains DIALKI, and Multi-Sentence: the model decides which."""

    @staticmethod
    def new_finder(model: DialkiModel, processes: Processes, batches: DialkiBatchConfig) -> KnowledgeFinder:
        """The finder of a DIALKI."""
        return KnowledgeFinder(model, processes, batches.eval_batch_size, batches.group_size)

    @staticmethod
    def no_parts() -> Parts:
        """Parts of nothing."""
        return Parts.zero()

    def choose(self, item: EncodedExample, step: int) -> Chosen:
        """A passage with gold, and others without."""
        return passages_to_train(item, self.batches.passages, self.seed, step, self.losses.gold)

    def loss(self, chosen: Sequence[Chosen], step: int) -> tuple[Tensor, Parts]:
        """L_next + α L_hist + β L_adv of some dialogues, a scalar [] in nats, and its parts (float64 [9])."""
        seed = stable_hash(self.seed, "noise", step)
        return objective(self.model, chosen, self.losses, seed, self.batches.group_size)
