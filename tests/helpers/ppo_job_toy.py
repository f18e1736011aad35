"""Whole PPO jobs of tiny models, in a process of their own where this is run as a script."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.rewards import BaseScorer, RewardConfig
from finegrained_rlhf.rollout import RolloutConfig, ScriptedReplies, VLLMConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.training.ppo.advantages import GroupAdvantages
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.job import TrainPPO


class Words(BaseScorer):
    """One number a response, or a turn: its words, and twice those that are `the`."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [((0, len(text)),) for text in responses]
        values = [(float(len(text.split()) + 2 * text.split().count("the")),) for text in responses]
        return SegmentScores(spans, values, whole_response=True)


class Echo:
    """Says the first word of the last turn back, twice."""

    role = "user"

    def reply(self, prompt: Prompt, turns: Sequence[str], seed: int) -> str | None:
        return (turns[-1].split() or ["red"])[0] if len(turns) < 3 else None


def job(model: str, data: str, output: str, steps: int = 3, turns: bool = False, **rollout: Any) -> TrainPPO:
    """A run of RLOO over whole responses, or in turns."""
    settings = {"prompts_per_step": 3, "samples_per_prompt": 3, "max_new_tokens": 40 if turns else 8}
    if "vllm" in rollout:
        rollout["vllm"] = VLLMConfig(**rollout["vllm"])
    return TrainPPO(
        data=data,
        policy=PolicyConfig(model),
        value=ValueConfig("none"),
        reward=RewardConfig({"words": Words()}, {"words": 1.0}),
        rollout=RolloutConfig(**{**settings, "top_k": 0, "temperature": 1.0, **rollout}),
        ppo=PPOConfig(epochs=2, score_sampling_distribution=True),
        optimizer=OptimizerConfig(lr=1e-3, eps=1e-5),
        algorithm=GroupAdvantages(credit="returns") if turns else GroupAdvantages(),
        total_steps=steps,
        output_dir=output,
        max_prompt_tokens=64,
        checkpoint_every=1,
        validate_every=steps,
        samples_every=1,
        processes=ProcessConfig(precision="fp32", threads=1),
        environment=ScriptedReplies() if turns else None,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    job(**json.loads(sys.argv[1])).run()
