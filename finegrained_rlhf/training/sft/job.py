"""Supervised fine-tuning as a configuration: what `finegrained train-sft` builds and runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from finegrained_rlhf.core.markers import DataName, above, at_least, below, harmless
from finegrained_rlhf.inference.config import ResponseMonitor
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.text.plain_text import TooLong
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.sft.trainer import SFTTrainer


@dataclass(frozen=True, kw_only=True)
class TrainSFT(TrainingRun["SFTTrainer"]):
    """Supervised fine-tuning of a policy on first references, on the answers of conversations, or on whole texts.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: prompt file, or data set of the Hub (`org/name:split`), to train on.
        whole_texts: learn the texts of `data` themselves, from their second token on, instead of answers to them
            (decoder-only policies); validation then measures the likelihood of those of `validation_data`.
        policy: starting model.
        optimizer: rates and schedule.
        epochs: passes over the data; used where `total_steps` is None.
        batch_size: examples an optimizer step, over all processes.
        micro_batch_size: examples in one forward and backward pass of a process.
        dropout: rate everywhere in the model; None keeps the model's own.
        validation_data: prompt file for validation; None trains without, and the last model is exported.
        validation_prompts: use at most so many of them; None uses all.
        validation_batch_size: prompts answered at once in a process.
        max_prompt_tokens: longest prompt in tokens.
        max_answer_tokens: longest answer, or with `whole_texts` text, in tokens, end of sequence included.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        prompt: chat template and system message.
        segmenter: spaCy pipeline that cuts sentences for RougeLSum.
        monitor: measures validation answers as well, for example by FactWorld's oracle.
    """

    shards_weights: ClassVar[bool] = True

    data: DataName
    policy: PolicyConfig
    optimizer: OptimizerConfig
    whole_texts: bool = False
    epochs: Annotated[float, above(0), harmless] = 10
    batch_size: Annotated[int, at_least(1)] = 4
    micro_batch_size: Annotated[int, at_least(1), harmless] = 4
    dropout: Annotated[float | None, at_least(0), below(1)] = None
    validation_data: DataName | None = None
    validation_prompts: Annotated[int | None, at_least(1)] = None
    validation_batch_size: Annotated[int, at_least(1), harmless] = 16
    max_prompt_tokens: int = 1024
    max_answer_tokens: Annotated[int, at_least(2)] = 200
    prompt_too_long: TooLong = "truncate"
    prompt: PromptConfig = PromptConfig()
    segmenter: str = DEFAULT_SEGMENTER
    monitor: ResponseMonitor | None = None

    def __post_init__(self) -> None:
        self.policy.check_frozen(self.processes.precision, reference=False)
        super().__post_init__()

    def steps(self, examples: int) -> int:
        """Training steps on so many examples."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.batch_size))

    def loop_config(self, examples: int) -> LoopConfig:
        """The settings of the training loop on so many examples."""
        epoch = max(1, math.ceil(examples / self.batch_size))
        return self.loop_settings(self.steps(examples), epoch=epoch, validates=self.validation_data is not None)

    def train(self, built: SFTTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop; the best model by RougeLSum, or by likelihood, ends up in `output_dir/policy`."""
        from finegrained_rlhf.training.sft.train import train_sft

        return train_sft(self, built, processes, run)

    def assemble(self, processes: Processes, run: RunDirectory) -> SFTTrainer:
        """Load model and data."""
        from finegrained_rlhf.training.sft.train import assemble_sft

        return assemble_sft(self, processes, run)
