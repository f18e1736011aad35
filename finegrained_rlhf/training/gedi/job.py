"""Training a class-conditional language model as a configuration: what `finegrained train-gedi` builds and runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from finegrained_rlhf.core.markers import InputFile, above, at_least, at_most, below, harmless
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.loop.types import LoopResult
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.gedi.trainer import GeDiTrainer


@dataclass(frozen=True, kw_only=True)
class TrainGeDi(TrainingRun["GeDiTrainer"]):
    """Train a class-conditional language model on labelled texts, for `rollout.GeDi`.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: labelled texts (`feedback.labelled_texts`); their scores are not read.
        policy: decoder-only model to start from, with the vocabulary of the policy that it shall steer.
        optimizer: rates and schedule.
        codes: by class the text that stands before its texts; None takes the classes' own names, sorted.
        validation_data: texts to select by; None trains without, and the last model is exported.
        generative: λ, the share of the generative loss.
        dropout: rate everywhere in the model; None keeps the model's own.
        epochs: passes over the data; used where `total_steps` is None.
        batch_size: texts an optimizer step, over all processes.
        micro_batch_size: texts in one forward and backward pass of a process, each once a class.
        validation_batch_size: the same in a validation.
        max_tokens: longest text, end of sequence included; longer ones lose their end.
    """

    data: InputFile
    policy: PolicyConfig
    optimizer: OptimizerConfig
    codes: Mapping[str, str] | None = None
    validation_data: InputFile | None = None
    generative: Annotated[float, at_least(0.0), at_most(1.0)] = 0.8
    dropout: Annotated[float | None, at_least(0), below(1)] = None
    epochs: Annotated[float, above(0), harmless] = 1
    batch_size: Annotated[int, at_least(1)] = 16
    micro_batch_size: Annotated[int, at_least(1), harmless] = 4
    validation_batch_size: Annotated[int, at_least(1), harmless] = 16
    max_tokens: Annotated[int, at_least(2)] = 192

    def __post_init__(self) -> None:
        self.policy.check_frozen(self.processes.precision, reference=False)
        super().__post_init__()

    def steps(self, examples: int) -> int:
        """Training steps on so many texts."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.batch_size))

    def train(self, built: GeDiTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop; the best model by its loss on the validation texts ends up in `output_dir/policy`."""
        from finegrained_rlhf.training.gedi.train import train_gedi

        return train_gedi(self, built, processes, run)

    def assemble(self, processes: Processes, run: RunDirectory) -> GeDiTrainer:
        """Read texts and model.

        Raises:
            DataError: a file is missing or damaged, or a text has no label.
            ConfigError: the policy is an encoder-decoder, or codes that do not belong to the data or the tokenizer.
            ModelError: no readable model, or it has no position for the end of the longest text, or no embedding for
                a token.
        """
        from finegrained_rlhf.training.gedi.train import assemble_gedi

        return assemble_gedi(self, processes, run)
