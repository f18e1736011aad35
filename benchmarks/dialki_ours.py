"""This project's side of the DIALKI benchmark: the finder and the trainer that the scripts use, nothing replaced.

Knows both of them. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.dialki_workload import LOSSES, DialkiProfile
from finegrained_rlhf.dialki.finder import Found, KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import Chosen, passages_to_train
from finegrained_rlhf.dialki.inputs.examples import EncodedExample
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.training.job import DialkiBatchConfig, TrainDialki
from finegrained_rlhf.dialki.training.trainer import DialkiTrainer
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.order import items_of_step


class Ours:
    """Finder and trainer of one model.

    Args:
        model: whose weights it uses and trains.
        profile: sizes.
        examples: dialogues.
        optimizer: rates.
        dropout: rate in training; None keeps the model's.
    """

    def __init__(
        self,
        model: DialkiModel,
        profile: DialkiProfile,
        examples: Sequence[DialogueExample],
        optimizer: OptimizerConfig,
        dropout: float | None = None,
    ) -> None:
        self.processes = Processes(ProcessConfig(profile.precision))
        self.finder = KnowledgeFinder(model, self.processes, profile.batch_size)
        self.encoded: Sequence[EncodedExample] = self.finder.encoder.encode(examples, training=True)[0]
        batches = DialkiBatchConfig(batch_size=profile.batch_size, passages=profile.train_passages)
        job = TrainDialki(
            output_dir="",
            data="",
            model="",
            optimizer=optimizer,
            batches=batches,
            losses=LOSSES,
            dropout=dropout,
            total_steps=1,
            seed=profile.seed,
        )
        self.trainer = DialkiTrainer(job, model, self.encoded, [], self.processes)

    def identify(self, examples: Sequence[DialogueExample]) -> list[Found]:
        """The answers, of a tokenizer that has seen nothing yet."""
        self.finder.encoder = self.finder.new_encoder(self.finder.model)
        return self.finder.identify(examples)

    def chosen(self, step: int) -> list[Chosen]:
        """The dialogues and passages of a training step."""
        batches, seed = self.trainer.job.batches, self.trainer.job.seed
        items = items_of_step(self.encoded, step, batches.batch_size, seed)
        return [passages_to_train(item, batches.passages, seed, step) for item in items]
