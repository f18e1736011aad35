"""Supervised fine-tuning as a configuration: what `scripts/train_sft.py` builds and runs."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.models.loading import PolicyConfig, check_vocabulary
from finegrained_rlhf.runtime.loop import LoopConfig, LoopResult, run_loop
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes
from finegrained_rlhf.runtime.run_directory import RunDirectory
from finegrained_rlhf.runtime.sinks import MetricSinks, TrackingConfig
from finegrained_rlhf.training.measure import ResponseMonitor
from finegrained_rlhf.training.prompts import TooLong, read_prompts
from finegrained_rlhf.training.sft import SFTSettings, SFTTrainer, demonstrations

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SFTJob:
    """Supervised fine-tuning of a policy on a prompt file's first references.

    Attributes:
        output_dir: run directory.
        data: QA-FEEDBACK prompt file to train on.
        policy: starting model.
        optimizer: rates and schedule.
        epochs: passes over the data; used where `total_steps` is None.
        total_steps: training steps; None derives them from `epochs`.
        batch_size: examples an optimizer step, over all processes.
        micro_batch_size: examples in one forward and backward pass of a process.
        dropout: rate everywhere in the model; None keeps the model's own.
        validation_data: prompt file for validation; None trains without, and the last model is exported.
        validation_prompts: use at most so many of them; None uses all.
        validation_batch_size: prompts answered at once in a process.
        max_prompt_tokens: longest prompt in tokens.
        max_answer_tokens: longest answer in tokens, end of sequence included.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        validate_every: training steps between validations; None validates once an epoch.
        checkpoint_every: training steps between checkpoints; None writes one an epoch.
        keep_checkpoints: how many of the latest stay, beside step 0.
        patience: end after so many validations in a row without a better one; None never does.
        segmenter: spaCy pipeline that cuts sentences for RougeLSum.
        seed: of the order, of dropout and of new adapters.
        resume: `auto`, `never`, or a checkpoint or run directory.
        processes: precision and CPU threads.
        tracking: where metrics go beside the run directory.
        monitor: measures validation answers as well, for example by FactWorld's oracle.
    """

    every_process: ClassVar[bool] = True

    output_dir: str
    data: str
    policy: PolicyConfig
    optimizer: OptimizerConfig
    epochs: float = 10
    total_steps: int | None = None
    batch_size: int = 4
    micro_batch_size: int = 4
    dropout: float | None = None
    validation_data: str | None = None
    validation_prompts: int | None = None
    validation_batch_size: int = 16
    max_prompt_tokens: int = 1024
    max_answer_tokens: int = 200
    prompt_too_long: TooLong = "truncate"
    validate_every: int | None = None
    checkpoint_every: int | None = None
    keep_checkpoints: int = 2
    patience: int | None = None
    segmenter: str = "rules"
    seed: int = 0
    resume: str = "auto"
    processes: ProcessConfig = ProcessConfig()
    tracking: TrackingConfig = TrackingConfig()
    monitor: ResponseMonitor | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batch_size", "validation_batch_size", "validation_prompts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: expected at least 1, got {value}")
        if self.max_answer_tokens < 2:
            raise ConfigError(f"max_answer_tokens: expected at least 2, got {self.max_answer_tokens}")
        if self.epochs <= 0:
            raise ConfigError(f"epochs: expected more than 0, got {self.epochs}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected null or 0 <= dropout < 1, got {self.dropout}")
        self.loop_config(examples=1)

    def steps(self, examples: int) -> int:
        """Training steps on so many examples."""
        if self.total_steps is not None:
            return self.total_steps
        return max(1, math.ceil(self.epochs * examples / self.batch_size))

    def loop_config(self, examples: int) -> LoopConfig:
        """The settings of the training loop on so many examples."""
        epoch = max(1, math.ceil(examples / self.batch_size))
        every = epoch if self.validate_every is None else self.validate_every
        return LoopConfig(
            total_steps=self.steps(examples),
            seed=self.seed,
            checkpoint_every=epoch if self.checkpoint_every is None else self.checkpoint_every,
            validate_every=every if self.validation_data else None,
            keep_checkpoints=self.keep_checkpoints,
            resume=self.resume,
            patience=self.patience,
        )

    def run(self) -> LoopResult:
        """Train, or continue training; the best model by RougeLSum ends up in `output_dir/policy`."""
        processes = Processes(self.processes)
        trainer = self.build(processes)
        run = RunDirectory(self.output_dir)
        result = run_loop(trainer, run, self.loop_config(len(trainer.data)), processes, MetricSinks(self.tracking))
        if processes.is_main and not result.already_done:
            score = "" if result.best_score is None else f" (RougeLSum {result.best_score:.3f})"
            logger.info("the policy of step %d%s is in %s", result.best_step, score, run.final("policy"))
        return result

    def build(self, processes: Processes) -> SFTTrainer:
        """Load model and data. Every process draws the same new adapters."""
        seed_everything(self.seed, "models")
        policy = self.policy.load(processes.device)
        prompts = read_prompts(self.data, policy.tokenizer, self.max_prompt_tokens, self.prompt_too_long)
        data = demonstrations(prompts, policy, self.max_answer_tokens)
        validation = []
        if self.validation_data:
            validation = read_prompts(
                self.validation_data, policy.tokenizer, self.max_prompt_tokens, self.prompt_too_long
            )[: self.validation_prompts]
        check_vocabulary(policy, [prompt.input_ids for prompt in (*prompts, *validation)])
        return SFTTrainer(
            policy,
            data,
            validation,
            SFTSettings(
                self.batch_size,
                self.micro_batch_size,
                self.dropout,
                self.max_answer_tokens,
                self.validation_batch_size,
            ),
            self.optimizer,
            self.steps(len(data)),
            processes,
            seed=self.seed,
            segmenter=self.segmenter,
            monitor=self.monitor,
        )
