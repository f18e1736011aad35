"""Rewards for TRL's trainers: functions that give one number a completion, by component or summed.

Satisfies the documented signature of a custom reward function (`reward_funcs` of `GRPOTrainer` and `RLOOTrainer`):
`f(prompts, completions, completion_ids, **columns) -> list[float]`. TRL pays a whole completion at its end, so that
density is lost there; what stays is one number a component, which GDPO standardises each on its own
(`multi_objective_aggregation="normalize_then_sum"`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finegrained_rlhf.bridges.arrays import DenseReward
from finegrained_rlhf.bridges.columns import message_text, prompt_of_row
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt

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
    return [_named(name, scored.component(name)) for name in reward.weights], list(reward.weights.values())


def trl_reward_function(reward: DenseReward, eos_ids: Sequence[int] = ()) -> TRLFunction:
    """One function that gives the weighted sum of all components. Arguments as `trl_reward_functions`."""
    functions, weights = trl_reward_functions(reward, eos_ids)

    def total(*arguments: Any, **columns: Any) -> list[float]:
        parts = [function(*arguments, **columns) for function in functions]
        return [
            sum(weight * value for weight, value in zip(weights, row, strict=True)) for row in zip(*parts, strict=True)
        ]

    return _named("fine_grained_reward", total)


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
        count = len(completions)
        by_row = {name: c for name, c in columns.items() if isinstance(c, list) and len(c) == count}
        prompt_rows = [
            prompt_of_row(message_text(prompt), {name: column[i] for name, column in by_row.items()}, i)
            for i, prompt in enumerate(prompts)
        ]
        texts, lengths, ended = [message_text(completion) for completion in completions], None, None
        if completion_ids is not None:
            lengths = [len(row) for row in completion_ids]
            ended = [any(int(i) in self._eos_ids for i in row) for row in completion_ids] if self._eos_ids else None
        call = (prompt_rows, texts, lengths, ended)
        if call != self._call:
            self._rewards = self._reward.of_responses(prompt_rows, texts, lengths=lengths, ended=ended)
            self._call = call
        return self._rewards


def _named(name: str, function: TRLFunction) -> TRLFunction:
    """The function under the name by which TRL logs it."""
    function.__name__ = function.__qualname__ = name
    return function
