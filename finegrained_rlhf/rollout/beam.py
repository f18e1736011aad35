"""Beam search with length normalisation, the search apart from the choice.

Which prefixes stay in the beam does not depend on the normalisation, because they are equally long. So one search
gives every finished hypothesis, and the best one for any strength of the normalisation is chosen afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout.select import stepper_of


@dataclass(frozen=True)
class Hypothesis:
    """A response that a search found.

    Attributes:
        ids: its tokens, the end of sequence included where it was reached.
        logprob: log Pr of all of them.
        finished: False where the limit of tokens cut it off.
    """

    ids: tuple[int, ...]
    logprob: float
    finished: bool

    def normalised(self, alpha: float) -> float:
        """Log Pr / lp with lp = ((5 + |Y|) / 6)^α, |Y| tokens (Wu et al., 2016, eq. 14, without coverage).

        Args:
            alpha: 0 is log Pr itself; the larger, the more long hypotheses gain.
        """
        return self.logprob / ((5 + len(self.ids)) / 6) ** alpha


def best(hypotheses: Sequence[Hypothesis], alpha: float) -> Hypothesis:
    """The hypothesis with the highest normalised score; of equal ones the one that was found first."""
    return max(hypotheses, key=lambda hypothesis: hypothesis.normalised(alpha))


@torch.no_grad()
def beam_search(policy: Policy, prompts: Sequence[Prompt], beams: int, max_new_tokens: int) -> list[list[Hypothesis]]:
    """All finished hypotheses of each prompt, in the order in which they were found.

    A prefix that takes the end of sequence is finished when it is among the `beams` best continuations of a step; the
    best others go on, always up to `max_new_tokens`, where those that are left are cut off.

    Args:
        policy: one that has a stepper (`rollout/select.py`).
        prompts: searched together.
        beams: width.
        max_new_tokens: longest response, end of sequence included.

    Raises:
        ModelError: the policy's architecture has no stepper.
        ValueError: beams or max_new_tokens below 1.
    """
    if beams < 1 or max_new_tokens < 1:
        raise ValueError(f"need beams >= 1 and max_new_tokens >= 1, got {beams} and {max_new_tokens}")
    open_stepper = stepper_of(policy)
    if open_stepper is None:
        raise ModelError(f"beam search needs a fast decoder, and {type(policy.model).__name__} has none here")
    if not prompts:
        return []
    stepper = open_stepper(policy, policy.encode(prompts), beams, max_new_tokens)
    search = _Search(policy, len(prompts), beams, max_new_tokens)
    tokens = stepper.first_tokens
    every = torch.arange(len(prompts), device=policy.device)
    for position in range(max_new_tokens):
        place = torch.full((1,), position, dtype=torch.long, device=policy.device)
        rows, tokens = search.advance(stepper.logits(tokens, place, position + 1), position)
        if position + 1 < max_new_tokens:
            stepper.keep(every, rows)
    return search.found()


class _Search:
    """The prefixes of one search: P prompts with B beams each."""

    def __init__(self, policy: Policy, prompts: int, beams: int, limit: int) -> None:
        device = policy.device
        self.prompts, self.beams = prompts, beams
        self.eos = torch.tensor(policy.eos_ids, device=device)
        self.ids = torch.zeros(prompts, beams, limit, dtype=torch.long, device=device)
        # One prefix a prompt to begin with: the others would be copies of it.
        self.scores = torch.full((prompts, beams), -torch.inf, dtype=torch.float64, device=device)
        self.scores[:, 0] = 0.0
        self.finished: list[list[Hypothesis]] = [[] for _ in range(prompts)]

    def advance(self, logits: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Take one step.

        Args:
            logits: [P·B, V].
            position: from 0.

        Returns:
            int64 [P·B] rows that the new prefixes continue, and int64 [P·B] their new tokens.
        """
        vocabulary = logits.shape[-1]
        steps = logits.float().log_softmax(dim=-1).double().view(self.prompts, self.beams, vocabulary)
        candidates = (self.scores.unsqueeze(2) + steps).flatten(1)
        # So many that as many as there are beams go on, whatever ends.
        count = min(self.beams * (1 + len(self.eos)), candidates.shape[1])
        scores, places = candidates.topk(count, dim=1)
        parents, tokens = places // vocabulary, places % vocabulary
        ended = torch.isin(tokens, self.eos)
        self._finish(parents, tokens, scores, ended, position)
        order = torch.argsort(ended.long(), dim=1, stable=True)[:, : self.beams]
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        self.scores = scores.gather(1, order).masked_fill(ended.gather(1, order), -torch.inf)
        self.ids = self.ids.gather(1, parents.unsqueeze(2).expand_as(self.ids))
        self.ids[:, :, position] = tokens
        first = torch.arange(self.prompts, device=parents.device).unsqueeze(1) * self.beams
        return (first + parents).flatten(), tokens.flatten()

    def _finish(self, parents: Tensor, tokens: Tensor, scores: Tensor, ended: Tensor, position: int) -> None:
        ended = ended & (torch.arange(ended.shape[1], device=ended.device) < self.beams) & scores.isfinite()
        for prompt, place in torch.nonzero(ended).tolist():
            head = self.ids[prompt, parents[prompt, place], :position].tolist()
            ids = (*head, int(tokens[prompt, place]))
            self.finished[prompt].append(Hypothesis(ids, float(scores[prompt, place]), finished=True))

    def found(self) -> list[list[Hypothesis]]:
        """The finished hypotheses, and the prefixes that are left."""
        ids, scores = self.ids.tolist(), self.scores.tolist()
        return [
            finished
            + [
                Hypothesis(tuple(row), score, finished=False)
                for row, score in zip(ids[prompt], scores[prompt], strict=True)
                if score > -torch.inf
            ]
            for prompt, finished in enumerate(self.finished)
        ]
