"""The project's side of a comparison with another trainer: GRPO without a value model, its own engine and update.

Knows how that trainer is put together, and a reward of every token that any process can compute.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ours import RecordingEngine, Step, open_policy
from benchmarks.profiles import PHASES
from benchmarks.workload import FIRST_WORD, Workload
from finegrained_rlhf.core.records import Prompt, Rollout, SegmentScores
from finegrained_rlhf.rewards import BaseScorer, RewardComposer, RewardConfig
from finegrained_rlhf.rollout import RolloutConfig, make_engine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.advantages import GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.metrics import KeptSamples
from finegrained_rlhf.training.ppo.parts import PPOData, PPOModels, PPOParts
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

TEMPERATURE, TOP_K, BETA, CLIP = 1.0, 20, 0.04, 0.2
"""With a temperature of 1 both trainers score the plain softmax. β is that of Shao et al. (2024)."""


def token_rewards(vocabulary: int) -> list[float]:
    """The reward of each id, in [−1, 1]; 0 for special tokens and words of the template."""
    return [0.0 if i < FIRST_WORD else (i * 7919 % 13 - 6) / 6 for i in range(vocabulary)]


class WordRewards(BaseScorer):
    """Every word is a segment with the reward of its token.

    Args:
        vocabulary: ids of the tokenizer.
    """

    value_range = (-1.0, 1.0)

    def __init__(self, vocabulary: int) -> None:
        self._values = token_rewards(vocabulary)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Of each word `w00017`, the reward of id 17."""
        found = [list(re.finditer(r"w(\d+)\S*", text)) for text in responses]
        spans = [tuple((word.start(), word.end()) for word in words) for words in found]
        return SegmentScores(spans, [tuple(self._values[int(word[1])] for word in words) for words in found])


class GroupSide:
    """The project's GRPO on a workload; one epoch.

    Args:
        workload: weights and prompts.
        lengths: `fixed` or `spread`.
        run: an empty directory for what the trainer writes.
        adam: of the policy.
    """

    def __init__(self, workload: Workload, lengths: str, run: Path, adam: OptimizerConfig) -> None:
        profile = workload.profile
        self.policy = open_policy(workload, lengths)
        self.engine = RecordingEngine(make_engine(self.policy))
        composer = RewardComposer(RewardConfig({"words": WordRewards(profile.vocabulary)}, {"words": 1.0}))
        composer.setup(workload.device)
        processes = Processes(ProcessConfig(profile.precision))
        parts = PPOParts(
            PPOModels(self.policy, None, adam, 1_000_000, processes),
            self.engine,
            composer,
            PPOData(workload.prompts(lengths), ()),
            processes,
            RunDirectory(run).create(),
        )
        kl = KLConfig(place="loss", estimator="k3", beta=BETA, limit=None)
        self.trainer = PPOTrainer(
            parts,
            PPOConfig(epochs=1, clip=CLIP, micro_batch_prompts=profile.micro_batch_prompts, kl=kl),
            RolloutConfig(profile.prompts, profile.samples, profile.new_tokens, TEMPERATURE, TOP_K),
            seed=profile.seed,
            samples=KeptSamples(every=1_000_000),
            algorithm=GroupAdvantages("group_mean", "std"),
        )
        self.steps = 0
        self.loss = self.gradient_norm = float("nan")

    @property
    def rollout(self) -> Rollout:
        """What the last step drew."""
        assert self.engine.last is not None
        return self.engine.last

    def step(self) -> Step:
        """One training step; `total` is all of it, what is measured and written beside its phases included.

        `processor` is the processor time of all threads. `loss` is then that of the whole step (its policy's part and
        β · KL), `gradient_norm` before it is clipped.
        """
        self.steps += 1
        start, processor = time.perf_counter(), time.process_time()
        metrics = self.trainer.train_step(self.steps)
        total = {"total": time.perf_counter() - start, "processor": time.process_time() - processor}
        seconds = {phase: metrics[f"time/{phase}_s"] for phase in PHASES} | total
        self.loss = metrics["loss/policy"] + BETA * metrics["loss/kl"]
        self.gradient_norm = metrics["gradient_norm"]
        return Step(seconds, int(self.rollout.lengths().sum()))
