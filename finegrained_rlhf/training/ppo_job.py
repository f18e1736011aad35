"""A PPO run as a configuration: what `scripts/train_ppo.py` builds and runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.models.loading import PolicyConfig, ValueConfig, check_vocabulary
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rewards.composition import RewardComposer, RewardConfig
from finegrained_rlhf.rollout.engine import RolloutConfig
from finegrained_rlhf.rollout.select import make_engine
from finegrained_rlhf.runtime.loop import LoopConfig, LoopResult, run_loop
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes
from finegrained_rlhf.runtime.run_directory import RunDirectory
from finegrained_rlhf.runtime.sinks import MetricSinks, TrackingConfig
from finegrained_rlhf.training.measure import ResponseMonitor
from finegrained_rlhf.training.ppo import PPOData, PPOTrainer
from finegrained_rlhf.training.ppo_config import PPOConfig
from finegrained_rlhf.training.ppo_models import PPOModels
from finegrained_rlhf.training.preflight import preflight
from finegrained_rlhf.training.prompts import read_prompts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PPOJob:
    """Reinforcement learning from fine-grained rewards.

    Attributes:
        output_dir: run directory.
        data: QA-FEEDBACK prompt file to train on.
        policy: starting policy, also the reference.
        value: value model.
        reward: components and weights.
        rollout: sampling.
        ppo: algorithm.
        optimizer: of policy and value model together.
        total_steps: training steps; a step draws `rollout.prompts_per_step` prompts.
        validation_data: prompt file for validation; None trains without.
        validation_prompts: use at most so many of them; None uses all.
        max_prompt_tokens: longest prompt in tokens.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        validate_every: training steps between validations.
        checkpoint_every: training steps between checkpoints.
        keep_checkpoints: how many of the latest stay, beside step 0 and the last.
        samples_every: training steps between files of sampled responses with their segment rewards.
        seed: of prompts, noise and new layers.
        resume: `auto`, `never`, or a checkpoint or run directory.
        processes: precision and CPU threads.
        tracking: where metrics go beside the run directory.
        monitor: measures validation responses beside the reward, for example by FactWorld's oracle.
        dry_run: print the memory that the run needs instead of running it.
    """

    every_process: ClassVar[bool] = True

    output_dir: str
    data: str
    policy: PolicyConfig
    value: ValueConfig
    reward: RewardConfig
    rollout: RolloutConfig
    ppo: PPOConfig
    optimizer: OptimizerConfig
    total_steps: int
    validation_data: str | None = None
    validation_prompts: int | None = None
    max_prompt_tokens: int = 1024
    prompt_too_long: Literal["truncate", "refuse"] = "truncate"
    validate_every: int = 50
    checkpoint_every: int = 50
    keep_checkpoints: int = 2
    samples_every: int = 10
    seed: int = 0
    resume: str = "auto"
    processes: ProcessConfig = ProcessConfig()
    tracking: TrackingConfig = TrackingConfig()
    monitor: ResponseMonitor | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.samples_every < 1 or (self.validation_prompts is not None and self.validation_prompts < 1):
            raise ConfigError("samples_every and validation_prompts must be at least 1")
        self._loop_config()

    def _loop_config(self) -> LoopConfig:
        return LoopConfig(
            total_steps=self.total_steps,
            seed=self.seed,
            checkpoint_every=self.checkpoint_every,
            validate_every=self.validate_every if self.validation_data else None,
            keep_checkpoints=self.keep_checkpoints,
            resume=self.resume,
        )

    def run(self) -> LoopResult | None:
        """Train, or continue training; says where the policy is. A dry run prints what it needs and returns None."""
        processes = Processes(self.processes)
        if self.dry_run:
            if processes.is_main:
                print(preflight(self, processes))
            return None
        run = RunDirectory(self.output_dir)
        result = run_loop(self.build(processes, run), run, self._loop_config(), processes, MetricSinks(self.tracking))
        if processes.is_main:
            logger.info("the policy of step %d is in %s", result.best_step, run.final("policy"))
        return result

    def build(self, processes: Processes, run: RunDirectory) -> PPOTrainer:
        """Load data, models and scorers. Every process draws the same new adapters and layers."""
        seed_everything(self.seed, "adapters")
        policy = self.policy.load(processes.device)
        if self.ppo.score_sampling_distribution:
            policy.scored = self.rollout.decoding()
        data = self.read_data(policy)
        seed_everything(self.seed, "models")
        models = PPOModels(policy, self.value.load(policy), self.optimizer, self.total_steps)
        composer = RewardComposer(self.reward, processes.sum_)
        composer.setup(processes.device)
        return PPOTrainer(
            models,
            make_engine(policy),
            composer,
            data,
            self.ppo,
            self.rollout,
            processes,
            run,
            seed=self.seed,
            samples_every=self.samples_every,
            monitor=self.monitor,
        )

    def read_data(self, policy: Policy) -> PPOData:
        """The prompts of the run, as this policy reads them.

        Raises:
            DataError: a prompt file is damaged, or a prompt too long and not to be cut.
            ModelError: the tokenizer does not belong to the model.
        """

        def read(path: str) -> list[Any]:
            return read_prompts(path, policy.tokenizer, self.max_prompt_tokens, self.prompt_too_long)

        train = read(self.data)
        validation: Sequence[Any] = read(self.validation_data) if self.validation_data else []
        if self.validation_prompts is not None:
            validation = validation[: self.validation_prompts]
        data = PPOData(train, validation)
        check_vocabulary(policy, [prompt.input_ids for prompt in (*data.train, *data.validation)])
        return data
