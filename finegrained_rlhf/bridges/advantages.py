"""Dense advantages for a trainer that draws and updates by itself: any reward, any estimator without a value model.

Each process scores its own responses; what was scored is gathered, and every process composes all of it alike. So the
responses to a prompt may lie on several processes, and schedules, constraints and running moments move alike in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from finegrained_rlhf.bridges.arrays import rows_as_rollout
from finegrained_rlhf.bridges.paid import LOSS, check_algorithm
from finegrained_rlhf.core.errors import ConsistencyError, DataError
from finegrained_rlhf.core.records import Experience, Prompt, Rollout, Sample, SegmentScores
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rewards.credit import Prefixes
from finegrained_rlhf.rollout.assembly import join_rollouts
from finegrained_rlhf.text.alignment import byte_tokens, token_ends
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator
from finegrained_rlhf.training.ppo.experience import make_experience, without_advantages
from finegrained_rlhf.training.ppo.resampling import joined_scores


@dataclass(frozen=True)
class Scored:
    """Responses of one process and what every component says of them.

    Attributes:
        rollout: R responses, a prompt a row; of the prompts id and text are left.
        scores: of the responses, by component.
        prefixes: of the responses, where the reward reads any.
    """

    rollout: Rollout
    scores: Mapping[str, SegmentScores]
    prefixes: Prefixes | None = None


class DenseAdvantages:
    """Rewards and advantages of ours for responses that another trainer drew.

    Args:
        reward: any: schedules, constraints and running moments follow the steps that are given.
        algorithm: an estimator without a value model.
        tokenizer: of the policy; decodes the sampled ids.
        eos_ids: the policy's ends of sequence.
        samples: responses a prompt.
        longest: the most tokens of a response; needed where `reward.revisions` is a number.
        device: where reward models run.

    Raises:
        ConfigError: the estimator learns a value model or needs more responses a prompt, or a scorer cannot be loaded.
    """

    def __init__(
        self,
        reward: RewardConfig,
        algorithm: AdvantageEstimator,
        tokenizer: Any,
        *,
        eos_ids: Sequence[int],
        samples: int,
        longest: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        check_algorithm(algorithm, samples)
        self.algorithm, self.samples, self._tokenizer = algorithm, samples, tokenizer
        self.composer = RewardComposer(reward, eos_ids=eos_ids, byte_ids=byte_tokens(tokenizer), longest=longest)
        self.composer.setup(torch.device(device))

    @torch.no_grad()
    def score(self, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]) -> Scored:
        """What the components say of R responses; the ids are decoded, and never tokenised again.

        Args:
            prompts: R prompts; their metadata holds what scorers read.
            ids: R sampled responses without padding, the end of sequence included where it was sampled.

        Raises:
            DataError: a response has no token.
            ConfigError: a scorer broke.
        """
        if empty := [row for row, tokens in enumerate(ids) if not tokens]:
            raise DataError(f"response {empty[0]} has no token, so that none can carry its reward")
        decoded = [token_ends(self._tokenizer, row) for row in ids]
        rollout = rows_as_rollout(prompts, ids, [text for text, _ in decoded], [ends for _, ends in decoded])
        scores = self.composer.score(prompts, rollout.texts)
        prefixes = self.composer.score_prefixes(rollout)
        bare = [Prompt(prompt.id, prompt.text, ()) for prompt in prompts]
        return Scored(replace(rollout, prompts=bare), scores, prefixes)

    def experience(self, parts: Sequence[Scored], step: int, *, train: bool = True) -> Experience:
        """Trace and advantages of all processes' responses; every process must call this with the same parts.

        Args:
            parts: of each process, in order; together the responses to one prompt after the other, as many each.
            step: of training, from 1, for schedules.
            train: False measures alone: weights are the configured ones, nothing moves, advantages are 0.

        Returns:
            Of R responses, on the CPU, prompts each once. KL and log-probabilities are 0: the other trainer has them.

        Raises:
            ConsistencyError: the responses to a prompt are no neighbours.
        """
        joined = join_parts(parts)
        rollout = grouped(joined.rollout, self.samples) if train else joined.rollout
        trace = self.composer.compose(rollout, joined.scores, prefixes=joined.prefixes, train=train, step=step)
        if not train:
            return without_advantages(rollout, trace, rollout.logprobs)
        return make_experience(
            rollout,
            trace,
            rollout.logprobs,
            None,
            beta=0.0,
            config=LOSS,
            reduce=lambda sums: sums,
            algorithm=self.algorithm,
        )


def join_parts(parts: Sequence[Scored]) -> Scored:
    """The responses of several processes as one lot."""
    starts = [sum(len(part.rollout.texts) for part in parts[:number]) for number in range(len(parts))]
    scores = {name: joined_scores([part.scores[name] for part in parts]) for name in parts[0].scores}
    return Scored(
        join_rollouts([part.rollout for part in parts], 0),
        scores,
        _joined_prefixes([part.prefixes for part in parts if part.prefixes is not None], starts),
    )


def _joined_prefixes(parts: Sequence[Prefixes], starts: Sequence[int]) -> Prefixes | None:
    if not parts:
        return None
    return Prefixes(
        [start + row for start, part in zip(starts, parts, strict=True) for row in part.rows],
        [token for part in parts for token in part.tokens],
        [text for part in parts for text in part.texts],
        {name: joined_scores([part.scores[name] for part in parts]) for name in parts[0].scores},
    )


def grouped(rollout: Rollout, samples: int) -> Rollout:
    """The rollout with each prompt once, of which `samples` neighbouring rows are the responses.

    Raises:
        ConsistencyError: neighbours answer different prompts.
    """
    rows = torch.arange(len(rollout.texts))
    texts = [prompt.text for prompt in rollout.prompts]
    if len(rows) % samples or any(texts[row] != texts[row - row % samples] for row in rows.tolist()):
        raise ConsistencyError(f"expected {samples} neighbouring responses to each prompt, of all processes in order")
    return replace(
        rollout,
        prompts=rollout.prompts[::samples],
        prompt_ids=rollout.prompt_ids[::samples],
        prompt_mask=rollout.prompt_mask[::samples],
        prompt_index=rows // samples,
        sample_index=rows % samples,
        decodings=(Sample(samples),),
    )
