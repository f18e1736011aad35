"""Rewards for other trainers, and rows of their data sets as prompts of ours.

For TRL, functions that give one number a completion, by component or summed, of the documented signature of a custom
reward function (`reward_funcs` of `GRPOTrainer` and `RLOOTrainer`): `f(prompts, completions, completion_ids,
**columns) -> list[float]`. TRL pays a whole completion at its end, so that density is lost there; what stays is one
number a component, which GDPO standardises each on its own (`multi_objective_aggregation="normalize_then_sum"`).

For verl, a reward manager whose tensor holds every segment's reward at its token, and a `compute_score`. A manager is
made with `(tokenizer, num_examine, compute_score, reward_fn_key, **kwargs)`, is called with a `DataProto` and gives
`reward_tensor` [R, T], which the trainer of verl up to 0.7.0 takes as `token_level_scores`. From 0.7.1 on its reward
loop makes managers by keywords, awaits their `run_single` and pays one number a response. Of a `DataProto` it reads
`batch` (tensors by name) and `non_tensor_batch` (arrays of objects by name).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finegrained_rlhf.bridges.arrays import DenseReward, TokenRewards
from finegrained_rlhf.bridges.paid import PAID
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.outputs import passages_of_lists
from finegrained_rlhf.text.alignment import decode_text

TRLFunction = Callable[..., list[float]]
_Call = tuple[list[Prompt], list[str], list[int] | None, list[bool] | None]


def trl_reward_functions(reward: DenseReward, eos_ids: Sequence[int] = ()) -> tuple[list[TRLFunction], list[float]]:
    """A function a component, and their weights: `reward_funcs` and `reward_weights`.

    All functions share one scoring of a batch. Columns of the data set reach scorers as metadata of the prompts.

    Args:
        reward: of ours.
        eos_ids: the policy's ends of sequence; needed for `reward.end_penalty`.

    Raises:
        ConfigError: they are needed and not given.
    """
    if reward.config.penalties.end and not eos_ids:
        raise ConfigError(
            "reward.end_penalty: the policy's ends of sequence are not known here; "
            "give eos_ids=[tokenizer.eos_token_id]"
        )
    scored = _Scored(reward, eos_ids)
    return [named(name, scored.component(name)) for name in reward.weights], list(reward.weights.values())


def trl_reward_function(reward: DenseReward, eos_ids: Sequence[int] = ()) -> TRLFunction:
    """One function that gives the weighted sum of all components. Arguments as `trl_reward_functions`."""
    functions, weights = trl_reward_functions(reward, eos_ids)

    def total(*arguments: Any, **columns: Any) -> list[float]:
        parts = [function(*arguments, **columns) for function in functions]
        return [
            sum(weight * value for weight, value in zip(weights, row, strict=True)) for row in zip(*parts, strict=True)
        ]

    return named("fine_grained_reward", total)


class _Scored:
    """The numbers of the last batch, which every component's function asks for."""

    def __init__(self, reward: DenseReward, eos_ids: Sequence[int]) -> None:
        self._reward, self._eos_ids = reward, set(eos_ids)
        self._call: _Call | None = None
        self._rewards: Mapping[str, list[float]] = {}

    def component(self, name: str) -> TRLFunction:
        def function(
            prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
        ) -> list[float]:
            return self._of(prompts, completions, completion_ids, columns)[name]

        return function

    def _of(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None,
        columns: Mapping[str, Any],
    ) -> Mapping[str, list[float]]:
        prompt_rows = prompts_of_columns(prompts, columns)
        texts, lengths, ended = [message_text(completion) for completion in completions], None, None
        if completion_ids is not None:
            lengths = [len(row) for row in completion_ids]
            ended = [any(int(i) in self._eos_ids for i in row) for row in completion_ids] if self._eos_ids else None
        call = (prompt_rows, texts, lengths, ended)
        if call != self._call:
            self._rewards = self._reward.of_responses(prompt_rows, texts, lengths=lengths, ended=ended)
            self._call = call
        return self._rewards


def prompts_of_columns(prompts: Sequence[Any], columns: Mapping[str, Any]) -> list[Prompt]:
    """R prompts for scorers of R texts or lists of messages; columns of R values are their metadata."""
    by_row = {name: c for name, c in columns.items() if isinstance(c, list) and len(c) == len(prompts)}
    return [
        prompt_of_row(message_text(prompt), {name: column[i] for name, column in by_row.items()}, i)
        for i, prompt in enumerate(prompts)
    ]


def named(name: str, function: TRLFunction) -> TRLFunction:
    """The function under the name by which TRL logs it."""
    function.__name__ = function.__qualname__ = name
    return function


def message_text(value: str | Sequence[Mapping[str, Any]]) -> str:
    """A text, or the contents of a list of chat messages, one behind the other; what is no text in them is left out."""
    return value if isinstance(value, str) else "\n".join(filter(None, map(_content, value)))


def _content(message: Mapping[str, Any]) -> str:
    """What a message says; a call of a tool says nothing, and of several parts (images among them) the texts count."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if part.get("text"))


def prompt_of_row(text: str, row: Mapping[str, Any], number: int) -> Prompt:
    """A prompt for scorers; no token ids.

    Args:
        text: what the policy read.
        row: what else is known of it, all of it metadata: `question`, `passages`, `references` for our reward models.
            Passages may be lists `[title, sentence 1, …]`, as JSON and Arrow hold them.
        number: of the row, which is its id where it has none.

    Raises:
        DataError: a passage is a list without a title, or not of texts.
    """
    metadata = {name: _lists(value) for name, value in row.items()}
    passages = metadata.get("passages")
    if isinstance(passages, list) and all(isinstance(passage, list) for passage in passages):
        metadata["passages"] = passages_of_lists(passages)
    return Prompt(str(row.get("id", number)), text, (), metadata)


def _lists(value: Any) -> Any:
    """The value with lists in place of arrays and tuples, as which Parquet comes back."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_lists(item) for item in value]
    return value


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
        """What verl's reward loop asks of one response: its number, each component's share, and what is paid where.

        Args:
            data: as in `__call__`, of one response.

        Returns:
            `reward_score`, the weighted sum, with `reward_extra_info`: a weighted sum a component under `reward/NAME`,
            and under `fine_grained`, as JSON, what each component pays at which token, for `register_verl_estimator`.
        """
        rewards = self.token_rewards(data)
        parts = {name: float(part.sum()) for name, part in rewards.components.items()}
        extra: dict[str, Any] = {f"reward/{name}": part for name, part in parts.items()}
        return {"reward_score": sum(parts.values()), "reward_extra_info": {**extra, PAID: json.dumps(rewards.paid[-1])}}

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
