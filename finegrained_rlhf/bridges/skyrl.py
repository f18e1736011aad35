"""SkyRL: a generator that pays every token of what another generator drew, and the estimator that reads more than sums.

SkyRL carries one number a token, so that components go by another way: generator and estimator live in one process, and
the generator leaves what it paid where the estimator finds it. Importing this module imports SkyRL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.bridges.arrays import DenseReward
from finegrained_rlhf.bridges.paid import Paid, estimate_of_paid
from finegrained_rlhf.bridges.trainers import message_text, prompt_of_row
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator, GroupAdvantages

try:
    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry
    from skyrl.train.generators.base import GeneratorInterface
except ImportError as error:
    raise ConfigError(f"SkyRL cannot be imported ({error}); make env-skyrl makes an environment with it") from None

NAME = "fine_grained"
CLOSE = 1e-5
"""How far a response's token rewards may be from what was left for it."""


class PaidResponses:
    """What responses were paid, by prompt, until an estimator has read it."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[list[float], Paid]]] = {}

    def put(self, prompt: str, rewards: list[float], paid: Paid) -> None:
        """Leave a response's token rewards and what they are made of."""
        self._kept.setdefault(prompt, []).append((rewards, paid))

    def take(self, prompt: str, rewards: Sequence[float]) -> Paid:
        """The oldest that was left for a response with these token rewards.

        Raises:
            ConsistencyError: there is none.
        """
        left = self._kept.get(prompt, [])
        for place, (known, _) in enumerate(left):
            if len(known) == len(rewards) and all(abs(a - b) <= CLOSE for a, b in zip(known, rewards, strict=True)):
                return left.pop(place)[1]
        raise ConsistencyError(
            f"the rewards of a response to {prompt!r} are not those that FineGrainedGenerator gave it; expected "
            "trainer.algorithm.use_kl_in_reward=false and no other change of rewards"
        )


class FineGrainedGenerator(GeneratorInterface):  # type: ignore[misc]
    """What another generator draws, with our rewards at its tokens.

    Args:
        inner: a generator of SkyRL's; its own rewards are replaced.
        reward: of ours.
        tokenizer: of the policy.
        paid: where the estimator finds what each component paid.
    """

    def __init__(self, inner: Any, reward: DenseReward, tokenizer: Any, paid: PaidResponses) -> None:
        self._inner, self._reward, self._tokenizer, self._paid = inner, reward, tokenizer, paid

    async def generate(self, input_batch: Any) -> Any:
        """Responses with `rewards`, a number a token, and the components' means in `rollout_metrics`.

        Args:
            input_batch: SkyRL's: `prompts`, messages; `env_extras`, what our scorers read; `trajectory_ids`.

        Raises:
            ConfigError: a response has turns, or tokens that the policy did not write.
        """
        output = await self._inner.generate(input_batch)
        ids, asked = output["response_ids"], input_batch["prompts"]
        if len(ids) != len(asked) or any(0 in mask for mask in output["loss_masks"]):
            raise ConfigError("FineGrainedGenerator pays responses of one turn; set generator.max_turns=1")
        extras = input_batch.get("env_extras") or [{}] * len(asked)
        rows = [
            prompt_of_row(message_text(prompt), dict(extra or {}), number)
            for number, (prompt, extra) in enumerate(zip(asked, extras, strict=True))
        ]
        rewards = self._reward.of_ids(rows, ids, self._tokenizer)
        tokens = [row[: len(own)].tolist() for row, own in zip(rewards.total, ids, strict=True)]
        if getattr(input_batch.get("batch_metadata"), "training_phase", "train") == "train":
            for mark, row, paid in zip(input_batch["trajectory_ids"], tokens, rewards.paid, strict=True):
                self._paid.put(str(mark.instance_id), row, paid)
        means = {f"reward/{name}": float(part.sum(axis=1).mean()) for name, part in rewards.components.items()}
        metrics = {**(output.get("rollout_metrics") or {}), **means}
        return {**output, "rewards": tokens, "rollout_metrics": metrics}


def register_skyrl_estimator(paid: PaidResponses, algorithm: AdvantageEstimator | None = None) -> None:
    """Register our estimator with SkyRL as `fine_grained` (`trainer.algorithm.advantage_estimator`).

    Args:
        paid: what the `FineGrainedGenerator` of the same process fills.
        algorithm: an estimator without a value model; RLOO on the sum of each response where None.
    """
    chosen = algorithm or GroupAdvantages()

    def fine_grained(
        token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[Any], **others: Any
    ) -> tuple[Tensor, Tensor]:
        """Advantages [R, T], as advantages and as returns; SkyRL's rows end at the right."""
        mask = response_mask.detach().cpu().long()
        lengths, width = mask.sum(dim=1), mask.shape[1]
        rows = [row[kept.bool()].tolist() for row, kept in zip(token_level_rewards.cpu(), mask, strict=True)]
        found = [paid.take(str(mark), row) for mark, row in zip(index, rows, strict=True)]
        left = (torch.arange(width) < lengths[:, None]).long()
        made = estimate_of_paid(found, left, [str(mark) for mark in index], chosen).advantages
        advantages = torch.zeros(mask.shape, dtype=torch.float32)
        advantages[mask.bool()] = made[left.bool()]
        advantages = advantages.to(token_level_rewards)
        return advantages, advantages

    if NAME in AdvantageEstimatorRegistry.list_available():
        AdvantageEstimatorRegistry.unregister(NAME)
    AdvantageEstimatorRegistry.register(NAME, fine_grained)
