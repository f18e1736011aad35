"""Rewards for verl: a reward manager whose tensor holds every segment's reward at its token, and a `compute_score`.

A manager is made with `(tokenizer, num_examine, compute_score, reward_fn_key, **kwargs)`, is called with a `DataProto`
and gives `reward_tensor` [R, T], which the trainer of verl up to 0.7.0 takes as `token_level_scores`. From 0.7.1 on its
reward loop makes managers by keywords, awaits their `run_single` and pays one number a response. Of a `DataProto` it
reads `batch` (tensors by name) and `non_tensor_batch` (arrays of objects by name).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finegrained_rlhf.bridges.arrays import DenseReward, TokenRewards
from finegrained_rlhf.bridges.columns import prompt_of_row
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.text.alignment import decode_text


class VerlRewardManager:
    """Rewards by token, made by our components. A subclass gives `make_reward`, and is what verl is told to load.

    Args:
        tokenizer: of the policy.
        num_examine: not used: nothing is printed.
        compute_score: not used: components score.
        reward_fn_key: not used: all data sources have one reward.
        kwargs: further keys of verl's configuration, not used.
    """

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int = 0,
        compute_score: Callable[..., Any] | None = None,
        reward_fn_key: str = "data_source",
        **kwargs: Any,
    ) -> None:
        self.tokenizer, self.reward = tokenizer, self.make_reward()

    def make_reward(self) -> DenseReward:
        """The reward; called once in every process that scores.

        Raises:
            ConfigError: a subclass does not give it.
        """
        raise ConfigError(f"{type(self).__name__}.make_reward: give the DenseReward that scores")

    def __call__(self, data: Any, return_dict: bool = False) -> Tensor | dict[str, Any]:
        """Token rewards of a batch.

        Args:
            data: with `responses` [R, T], `prompts` [R, L] and `attention_mask` [R, L + T] in `batch`; `extra_info` (a
                mapping a row: `question`, `passages`, …) and `reward_model` (its `ground_truth` are references) in
                `non_tensor_batch`, both optional.
            return_dict: give the sums by component as well.

        Returns:
            float32 [R, T] on the device of the responses; or `reward_tensor`, that, with `reward_extra_info`, a list of
            R weighted sums a component under `reward/NAME`.
        """
        responses, rewards = data.batch["responses"], self.token_rewards(data)
        tensor = torch.from_numpy(rewards.total).to(responses.device)
        if not return_dict:
            return tensor
        sums = {f"reward/{name}": part.sum(axis=1).tolist() for name, part in rewards.components.items()}
        return {"reward_tensor": tensor, "reward_extra_info": sums}

    async def run_single(self, data: Any) -> dict[str, Any]:
        """What verl's reward loop asks of one response: its number, and each component's share; nothing at tokens.

        Args:
            data: as in `__call__`, of one response.

        Returns:
            `reward_score`, the weighted sum, with `reward_extra_info`: a weighted sum a component under `reward/NAME`.
        """
        parts = {name: float(part.sum()) for name, part in self.token_rewards(data).components.items()}
        return {
            "reward_score": sum(parts.values()),
            "reward_extra_info": {f"reward/{name}": part for name, part in parts.items()},
        }

    def token_rewards(self, data: Any) -> TokenRewards:
        """The same by component; arguments as in `__call__`."""
        responses, prompts = data.batch["responses"], data.batch["prompts"]
        mask = data.batch["attention_mask"].bool().cpu()
        length = prompts.shape[1]
        prompt_ids = [row[kept].tolist() for row, kept in zip(prompts.cpu(), mask[:, :length], strict=True)]
        answered = [row[kept].tolist() for row, kept in zip(responses.cpu(), mask[:, length:], strict=True)]
        rows = [
            prompt_of_row(decode_text(self.tokenizer, ids), _metadata(data.non_tensor_batch, i), i)
            for i, ids in enumerate(prompt_ids)
        ]
        return self.reward.of_ids(rows, answered, self.tokenizer, width=responses.shape[1])


def verl_compute_score(reward: DenseReward) -> Callable[..., dict[str, float]]:
    """A `compute_score(data_source, solution_str, ground_truth, extra_info)`: one response, paid as a whole.

    Args:
        reward: of ours, without penalties for form, whose tokens are not known here.

    Returns:
        A function that gives `score`, the weighted sum, and `reward/NAME`, each component's share.

    Raises:
        ConfigError: the reward has a penalty for form.
    """
    if penalties := list(reward.config.penalties.weights):
        raise ConfigError(
            f"compute_score sees no tokens, by which {penalties[0]} is counted; leave out reward.end_penalty and "
            "reward.overlong, or take VerlRewardManager"
        )

    def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, float]:
        prompt = _prompt_of(extra_info, ground_truth)
        parts = reward.of_responses([prompt], [solution_str])
        weighted = {
            f"reward/{name}": 0.0 if math.isnan(values[0]) else reward.weights[name] * values[0]
            for name, values in parts.items()
        }
        return {"score": sum(weighted.values()), **weighted}

    return compute_score


def _prompt_of(extra_info: Mapping[str, Any] | None, ground_truth: Any) -> Prompt:
    row = _with_references(dict(extra_info or {}), ground_truth)
    return prompt_of_row(str(row.get("question", "")), row, 0)


def _metadata(columns: Mapping[str, Any], number: int) -> dict[str, Any]:
    extra = columns["extra_info"][number] if "extra_info" in columns else None
    judged = columns["reward_model"][number] if "reward_model" in columns else None
    return _with_references(dict(extra or {}), (judged or {}).get("ground_truth"))


def _with_references(row: dict[str, Any], ground_truth: Any) -> dict[str, Any]:
    """The row, with the ground truth as its references where it has none; one that is no text as `ground_truth`."""
    if isinstance(ground_truth, str):
        return {"references": [ground_truth], **row}
    if isinstance(ground_truth, np.ndarray | list | tuple):
        return {"references": list(ground_truth), **row}
    return row if ground_truth is None else {"ground_truth": ground_truth, **row}
