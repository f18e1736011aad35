"""The project's side: its own PPO trainer with its own engine, scorers and update, nothing replaced.

Knows how a trainer is put together without Hydra. Measures through the trainer's own phase times.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.families import CAUSAL
from benchmarks.profiles import PHASES
from benchmarks.workload import COMPONENTS, WEIGHTS, PlainSegmenter, Workload, end_ids
from finegrained_rlhf.core.records import Decoding, Prompt, Rollout
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory, Seq2SeqPolicy
from finegrained_rlhf.models.value import SeparateValueModel
from finegrained_rlhf.rewards import RewardComposer, RewardConfig, Scorer
from finegrained_rlhf.rollout import RolloutConfig, RolloutEngine, make_engine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.metrics import KeptSamples
from finegrained_rlhf.training.ppo.parts import PPOData, PPOModels, PPOParts
from finegrained_rlhf.training.ppo.trainer import PPOTrainer
from reward_models.scorers import SegmentScorer, SequenceScorer

ADAM = OptimizerConfig(lr=1e-5, schedule="constant")


@dataclass(frozen=True)
class Step:
    """One measured step.

    Attributes:
        seconds: wall-clock time by phase.
        tokens: response tokens that were drawn.
    """

    seconds: dict[str, float]
    tokens: int


class RecordingEngine:
    """Passes everything on to an engine and keeps the last rollout for the caller to look at."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine = engine
        self.last: Rollout | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """See `RolloutEngine.encode`."""
        return self.engine.encode(prompts)

    def decode(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Rollout:
        """See `RolloutEngine.decode`."""
        self.last = self.engine.decode(memory, decodings, max_new_tokens=max_new_tokens, seed=seed, step=step)
        return self.last


def open_policy(workload: Workload, lengths: str) -> Policy:
    """A copy of the workload's policy whose responses end as the run with these lengths wants."""
    build = CausalPolicy if workload.profile.family in CAUSAL else Seq2SeqPolicy
    policy = build(copy.deepcopy(workload.policy), workload.tokenizer)
    policy.eos_ids = end_ids(workload.profile, lengths)
    return policy


def make_composer(workload: Workload) -> RewardComposer:
    """The three reward models of the workload, loaded."""
    components: dict[str, Scorer] = {}
    segmenter = PlainSegmenter()
    for name, kind in COMPONENTS.items():
        path = str(workload.directory / name)
        components[name] = SequenceScorer(path) if kind == "completeness" else SegmentScorer(path, segmenter=segmenter)
    composer = RewardComposer(RewardConfig(components, WEIGHTS))
    composer.setup(workload.device)
    return composer


class Ours:
    """The project's trainer on a workload.

    Args:
        workload: weights and prompts.
        lengths: `fixed` or `spread`.
        run: an empty directory for what the trainer writes.
        adam: of policy and value model.
        processes: how processes compute; None takes the profile's settings and defaults.
    """

    name = "ours"

    def __init__(
        self,
        workload: Workload,
        lengths: str,
        run: Path,
        adam: OptimizerConfig = ADAM,
        processes: ProcessConfig | None = None,
        mini_batches: int = 1,
    ) -> None:
        profile = workload.profile
        self.policy = open_policy(workload, lengths)
        value = SeparateValueModel(copy.deepcopy(workload.value), self.policy)
        value.head.load_state_dict(workload.value_head.state_dict())
        self.engine = RecordingEngine(make_engine(self.policy))
        together = Processes(processes or ProcessConfig(profile.precision, compiled=profile.compiled))
        parts = PPOParts(
            PPOModels(self.policy, value.to(workload.device), adam, 1_000_000, together),
            self.engine,
            make_composer(workload),
            PPOData(workload.prompts(lengths), ()),
            together,
            RunDirectory(run).create(),
        )
        self.trainer = PPOTrainer(
            parts,
            PPOConfig(
                epochs=profile.epochs,
                mini_batches=mini_batches,
                micro_batch_prompts=profile.micro_batch_prompts,
                micro_batch_tokens=profile.micro_batch_tokens,
                kl=KLConfig(limit=None),
            ),
            RolloutConfig(profile.prompts, profile.samples, max_new_tokens=profile.new_tokens),
            seed=profile.seed,
            samples=KeptSamples(every=1_000_000),
        )
        self._steps = 0

    @property
    def rollout(self) -> Rollout:
        """What the last step drew."""
        assert self.engine.last is not None
        return self.engine.last

    def step(self) -> Step:
        """One training step."""
        self._steps += 1
        metrics = self.trainer.train_step(self._steps)
        return Step({phase: metrics[f"time/{phase}_s"] for phase in PHASES}, int(self.rollout.lengths().sum()))
