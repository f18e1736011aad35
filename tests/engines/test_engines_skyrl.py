"""Our dense advantages by SkyRL's own functions (`make test-skyrl`): batches, registry, advantages. No GPU, no Ray."""

from __future__ import annotations

import asyncio
import sys
import typing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typing_extensions
from letters_toy import LetterScorer
from ppo_toy import LengthScorer
from rl_toy import policy, prompts, tokenizer

from finegrained_rlhf.bridges import DenseReward
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.core.records import Rollout, Sample
from finegrained_rlhf.rewards import RewardComposer, RewardConfig
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.training.ppo import GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience

if sys.version_info < (3, 12):  # SkyRL is written for 3.12; before it, pydantic wants this one
    typing.TypedDict = typing_extensions.TypedDict

from skyrl.backends.skyrl_train.utils.ppo_utils import compute_advantages_and_returns  # noqa: E402
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors  # noqa: E402
from skyrl.train.generators.base import GeneratorInterface, TrajectoryID  # noqa: E402

from finegrained_rlhf.bridges.skyrl import FineGrainedGenerator, PaidResponses, register_skyrl_estimator  # noqa: E402

ALGORITHMS = [
    GroupAdvantages("group_mean", "std", credit="process", by_component=True, whiten=True),
    GroupAdvantages(credit="returns"),
]


def reward() -> RewardConfig:
    return RewardConfig({"words": LetterScorer(), "length": LengthScorer()}, {"words": 1.0, "length": 0.5})


def drawn() -> Rollout:
    ours = policy("llama")
    engine = make_engine(ours)
    return engine.decode(engine.encode(prompts("llama", 3)), [Sample(4, temperature=2.0)], max_new_tokens=7, seed=1)


def expected(rollout: Rollout, algorithm: GroupAdvantages) -> torch.Tensor:
    """What our own trainer would take."""
    composer = RewardComposer(reward(), eos_ids=policy("llama").eos_ids)
    trace = composer.compose(rollout, composer.score(rollout.row_prompts(), rollout.texts))
    config = PPOConfig(kl=KLConfig(place="loss"))
    made = make_experience(
        rollout, trace, rollout.logprobs, None, beta=0.0, config=config, reduce=lambda x: x, algorithm=algorithm
    )
    return made.advantages


class Inner(GeneratorInterface):
    """A generator of SkyRL's that gives recorded responses and a reward of its own."""

    def __init__(self, rollout: Rollout, mask: int = 1) -> None:
        lengths = rollout.lengths().tolist()
        self.ids = [row[:n] for row, n in zip(rollout.response_ids.tolist(), lengths, strict=True)]
        self.asked, self.mask = [list(prompt.input_ids) for prompt in rollout.row_prompts()], mask

    async def generate(self, input_batch: Any) -> Any:
        return {
            "prompt_token_ids": self.asked,
            "response_ids": self.ids,
            "rewards": [9.0] * len(self.ids),
            "loss_masks": [[1] * (len(row) - 1) + [self.mask] for row in self.ids],
            "stop_reasons": None,
            "rollout_metrics": {"theirs": 1.0},
            "rollout_logprobs": None,
        }


def asked_of(rollout: Rollout, phase: str = "train") -> dict[str, Any]:
    """What SkyRL's trainer asks of a generator."""
    rows = zip(rollout.row_prompts(), rollout.prompt_index.tolist(), rollout.sample_index.tolist(), strict=True)
    trajectories = [TrajectoryID(f"u{group}", sample) for _, group, sample in rows]
    return {
        "prompts": [[{"role": "user", "content": prompt.text}] for prompt in rollout.row_prompts()],
        "env_extras": [{"question": prompt.text} for prompt in rollout.row_prompts()],
        "trajectory_ids": trajectories,
        "batch_metadata": SimpleNamespace(global_step=1, training_phase=phase),
    }


def batch_of(output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """SkyRL's own padding: token rewards and mask [R, T], which end at the right."""
    made = convert_prompts_responses_to_batch_tensors(
        0, output["prompt_token_ids"], output["response_ids"], output["rewards"], output["loss_masks"]
    )
    return made[3], made[2]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["gdpo_by_segment", "returns"])
def test_skyrl_computes_our_advantages(algorithm: GroupAdvantages) -> None:
    rollout, paid = drawn(), PaidResponses()
    generator = FineGrainedGenerator(Inner(rollout), DenseReward(reward()), tokenizer("llama"), paid)
    register_skyrl_estimator(paid, algorithm)
    output = asyncio.run(generator.generate(asked_of(rollout)))
    assert output["rollout_metrics"]["theirs"] == 1.0 and "reward/words" in output["rollout_metrics"]
    assert [len(row) for row in output["rewards"]] == rollout.lengths().tolist()
    rewards, mask = batch_of(output)
    uids = [one.instance_id for one in asked_of(rollout)["trajectory_ids"]]
    order = torch.randperm(len(uids), generator=torch.Generator().manual_seed(3)).tolist()
    advantages, returns = compute_advantages_and_returns(
        rewards[order], mask[order], [uids[i] for i in order], "fine_grained", None
    )
    wanted = expected(rollout, algorithm)
    for place, row in enumerate(order):
        length = int(mask[row].sum())
        torch.testing.assert_close(advantages[place, -length:], wanted[row, :length], atol=1e-5, rtol=0)
        assert not advantages[place, : advantages.shape[1] - length].any()
    assert torch.equal(advantages, returns) and max(len(row.unique()) for row in advantages) > 3


def test_rewards_that_somebody_changed_are_refused() -> None:
    rollout, paid = drawn(), PaidResponses()
    generator = FineGrainedGenerator(Inner(rollout), DenseReward(reward()), tokenizer("llama"), paid)
    register_skyrl_estimator(paid)
    output = asyncio.run(generator.generate(asked_of(rollout, "eval")))  # of which nothing is learnt
    rewards, mask = batch_of(output)
    uids = [one.instance_id for one in asked_of(rollout)["trajectory_ids"]]
    with pytest.raises(ConsistencyError, match="use_kl_in_reward=false"):
        compute_advantages_and_returns(rewards, mask, uids, "fine_grained", None)
    rewards, mask = batch_of(asyncio.run(generator.generate(asked_of(rollout))))
    with pytest.raises(ConsistencyError, match="a response to 'u0'"):
        compute_advantages_and_returns(rewards - 0.1 * mask, mask, uids, "fine_grained", None)


def test_turns_are_refused() -> None:
    rollout = drawn()
    generator = FineGrainedGenerator(Inner(rollout, mask=0), DenseReward(reward()), tokenizer("llama"), PaidResponses())
    with pytest.raises(ConfigError, match="responses of one turn"):
        asyncio.run(generator.generate(asked_of(rollout)))
