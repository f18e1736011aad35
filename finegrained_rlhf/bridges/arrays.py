"""Rewards of one step of another trainer as arrays: by token and component, or one number a response and component.

A tokenizer is needed only where ids are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finegrained_rlhf.bridges.paid import Paid, paid_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, Rollout, Sample, SegmentScores, learnt_tokens, pad_rows
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.text.alignment import Decoder, byte_tokens, token_ends

_END, _BYTE = 1, 2
"""The id that stands for an end of sequence in the rollout that is composed; all other tokens are 0."""


@dataclass(frozen=True)
class TokenRewards:
    """Rewards of R responses of T tokens at most.

    Attributes:
        components: by name, penalties for form included: float32 [R, T], weight · value at the token that carries it, 0
            elsewhere.
        total: float32 [R, T], their sum.
        mask: bool [R, T], True at the tokens of a response; nowhere in one that a component has no score of, which is
            not to be learnt from.
        paid: R mappings, what each response is paid where, before weights (`bridges.paid`).
    """

    components: Mapping[str, NDArray[np.float32]]
    total: NDArray[np.float32]
    mask: NDArray[np.bool_]
    paid: Sequence[Paid]


class DenseReward:
    """A reward of ours for a trainer of others.

    Weights are the configured ones; gates and penalties for form hold as in our training.

    Args:
        reward: components, weights, settings.
        device: where its models run.

    Raises:
        ConfigError: the reward has what only a training run of ours can follow: a schedule, a constraint, or running
            normalisation.
    """

    def __init__(self, reward: RewardConfig, device: torch.device | str = "cpu") -> None:
        for place, parts in (("schedule", reward.schedule), ("constraints", reward.constraints)):
            if moving := [name for name, part in parts.items() if part.active]:
                raise ConfigError(
                    f"reward.{place}.{moving[0]}: moves with our trainer's steps; set reward.weights instead"
                )
        if normalised := [name for name, setting in reward.settings.items() if setting.normalisation != "none"]:
            raise ConfigError(
                f"reward.settings.{normalised[0]}.normalisation: running moments exist in our training run only"
            )
        self.config = reward
        self._composer = RewardComposer(reward, eos_ids=(_END,), byte_ids=(_BYTE,))
        self._composer.setup(torch.device(device))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component, and of the penalties for form that are on."""
        return {name: float(weight) for name, weight in self.config.all_weights.items()}

    @torch.no_grad()
    def of_texts(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        ends: Sequence[Sequence[int]],
        *,
        ended: Sequence[bool] | None = None,
        width: int | None = None,
        byte_places: Sequence[Sequence[int]] | None = None,
    ) -> TokenRewards:
        """Token rewards of R responses whose tokens' ends are known.

        Args:
            prompts: R prompts; their metadata holds what scorers read (`question`, `passages`, `references`).
            texts: R responses without special tokens.
            ends: for every token of a response the character of its text at which it ends, not decreasing; special
                tokens included, at the end of what stands before them.
            ended: R flags, whether a response has its end of sequence; needed for `reward.end_penalty`.
            width: T; the longest response where None.
            byte_places: places of the tokens of each response that are a byte of a character, as vocabularies of
                sentencepiece have them: later ones may change what they give, so they decide nothing. None: no such.

        Raises:
            DataError: the numbers of prompts, texts, ends and flags differ, a response has no token, or its ends cannot
                be characters of its text.
            AlignmentError: a segment ends behind the last token.
            ConfigError: a scorer broke, or a penalty needs `ended`.
        """
        bytes_of_rows = byte_places or [()] * len(texts)
        rollout = _rollout(prompts, texts, ends, self._ended(ended, len(texts)), width, bytes_of_rows)
        scores, prefixes = self._composer.score(prompts, texts), self._composer.score_prefixes(rollout)
        trace = self._composer.compose(rollout, scores, prefixes=prefixes, train=False)
        parts = {name: part.weighted.numpy() for name, part in trace.components.items()}
        learnt = learnt_tokens(rollout.response_mask, trace.scored).numpy() > 0
        return TokenRewards(parts, trace.total.numpy(), learnt, [paid_of(trace, row) for row in range(len(texts))])

    def of_ids(
        self,
        prompts: Sequence[Prompt],
        ids: Sequence[Sequence[int]],
        tokenizer: Decoder,
        eos_ids: Sequence[int] = (),
        *,
        width: int | None = None,
    ) -> TokenRewards:
        """Token rewards of R responses of sampled ids; the ids are decoded, and never tokenised again.

        Args:
            prompts: as in `of_texts`.
            ids: R responses without padding, the end of sequence included where it was sampled.
            tokenizer: that decodes them.
            eos_ids: the policy's ends of sequence; the tokenizer's own where none is given.
            width: as in `of_texts`.

        Raises:
            DataError, AlignmentError, ConfigError: as in `of_texts`.
        """
        decoded = [token_ends(tokenizer, row) for row in ids]
        stops: set[int | None] = {*eos_ids} or {getattr(tokenizer, "eos_token_id", None)}
        unfinished = byte_tokens(tokenizer)
        return self.of_texts(
            prompts,
            [text for text, _ in decoded],
            [ends for _, ends in decoded],
            ended=[any(token in stops for token in row) for row in ids],
            width=width,
            byte_places=[[place for place, token in enumerate(row) if token in unfinished] for row in ids],
        )

    @torch.no_grad()
    def of_responses(
        self,
        prompts: Sequence[Prompt],
        texts: Sequence[str],
        *,
        lengths: Sequence[int] | None = None,
        ended: Sequence[bool] | None = None,
    ) -> dict[str, list[float]]:
        """One number a response and component, before weights: the sum of its segments' values, 0 behind a closed gate.

        Args:
            prompts: as in `of_texts`.
            texts: R responses.
            lengths: tokens of each response, end of sequence included; needed for `reward.overlong`.
            ended: as in `of_texts`.

        Returns:
            R numbers a component, in the order of the configuration, penalties for form behind them. Σ weight · number
            is what a response earns. NaN where a component has no score of a response.

        Raises:
            DataError: the numbers of prompts, texts, lengths and flags differ.
            ConfigError: a scorer broke, or a penalty needs `lengths` or `ended`.
        """
        _same(texts, prompts=prompts, lengths=lengths, ended=ended)
        scores: dict[str, SegmentScores] = self._composer.score(prompts, texts)
        if self.config.penalties.overlong.limit is not None and lengths is None:
            raise ConfigError("reward.overlong: the lengths of the responses in tokens are not known here")
        flags, counts = self._ended(ended, len(texts)), lengths or [0] * len(texts)
        scores |= self.config.penalties.count(flags, counts, texts)
        used = self._composer.used_values(scores)
        gates = {name: self._composer.gate(name, scores) for name in scores}
        return {
            name: [
                math.nan if i in scores[name].unscored else float(sum(row)) if gate is None or gate[i] else 0.0
                for i, row in enumerate(used[name])
            ]
            for name, gate in gates.items()
        }

    def _ended(self, ended: Sequence[bool] | None, count: int) -> Sequence[bool]:
        if ended is None and self.config.penalties.end:
            raise ConfigError("reward.end_penalty: which responses ended is not known here; give `ended`")
        return [True] * count if ended is None else ended


def _same(texts: Sequence[str], **arguments: Sequence[Any] | None) -> None:
    """Require one of each, where it is given, for every response."""
    for name, values in arguments.items():
        if values is not None and len(values) != len(texts):
            raise DataError(f"{len(texts)} responses need as many {name}, got {len(values)}")


def _checked_ends(row: int, ends: Sequence[int], text: str) -> tuple[int, ...]:
    """The characters at which the tokens of a response end, if they can be that."""
    places = tuple(map(int, ends))
    if not places:
        raise DataError(f"response {row} has no token, so that none can carry its reward")
    if any(not before <= end <= len(text) for before, end in zip((0, *places), places, strict=False)):
        problem = f"expected characters of the text (0 to {len(text)}) that do not decrease, got {list(places)}"
        raise DataError(f"response {row}: {problem}", field="ends")
    return places


def _rollout(
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    ends: Sequence[Sequence[int]],
    ended: Sequence[bool],
    width: int | None,
    byte_places: Sequence[Sequence[int]],
) -> Rollout:
    """A rollout with all that rewards read of one: ids say where it ends and what is a byte, log-probabilities 0."""
    _same(texts, prompts=prompts, ends=ends, ended=ended, byte_places=byte_places)
    checked = [_checked_ends(row, places, text) for row, (places, text) in enumerate(zip(ends, texts, strict=True))]
    kinds = [
        [_BYTE if place in own else 0 for place in range(len(places) - bool(end))] + [_END] * bool(end)
        for places, end, own in zip(checked, ended, byte_places, strict=True)
    ]
    return rows_as_rollout(prompts, kinds, texts, checked, width)


def rows_as_rollout(
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    ends: Sequence[tuple[int, ...]],
    width: int | None = None,
) -> Rollout:
    """A rollout of R responses that another trainer drew: a prompt a row, log-probabilities 0.

    Args:
        prompts: R prompts.
        ids: R responses without padding.
        texts: R texts.
        ends: R tuples, the character at which each token ends.
        width: T; the longest response where None.

    Raises:
        DataError: a response is longer than the width.
    """
    padded, mask = pad_rows(ids, 0)
    if width is not None:
        if width < padded.shape[1]:
            raise DataError(f"a response has {padded.shape[1]} tokens, more than the width {width}")
        padded, mask = (torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in (padded, mask))
    rows = len(texts)
    prompt_ids, prompt_mask = pad_rows([()] * rows, 0)
    return Rollout(
        prompts=prompts,
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_index=torch.arange(rows),
        sample_index=torch.zeros(rows, dtype=torch.long),
        decoding_index=torch.zeros(rows, dtype=torch.long),
        decodings=(Sample(1),),
        response_ids=padded,
        response_mask=mask,
        logprobs=torch.zeros(padded.shape),
        texts=texts,
        token_ends=ends,
    )
