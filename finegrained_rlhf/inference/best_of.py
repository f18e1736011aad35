"""Best of n: of several samples of a prompt, the one whose reward is highest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from finegrained_rlhf.core.records import Prompt, SegmentScores, unscored_rows
from finegrained_rlhf.inference.generator import Response
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.runtime.processes import Processes

TIE = 1e-6
"""Total rewards that differ by no more are equal. Sums in another order, or another batch, differ by less."""

_SCORED_AT_ONCE = 64


@dataclass(frozen=True)
class RewardedSegment:
    """One segment with what a component gave for it.

    Attributes:
        component: name of the reward component.
        start: first character in the response.
        end: the character after its last.
        raw: the scorer's value.
        normalised: after the component's aggregation.
        weighted: weight · normalised.
    """

    component: str
    start: int
    end: int
    raw: float
    normalised: float
    weighted: float


@dataclass(frozen=True)
class RewardedResponse:
    """A response with what its total reward is made of.

    Attributes:
        response: the response.
        total: what PPO would give it, KL aside; None where a component has no score of it.
        segments: component by component; the `weighted` of all of them add up to the total.
        closed: components whose gate is closed in it.
        unscored: components that have no score of it.
    """

    response: Response
    total: float | None
    segments: tuple[RewardedSegment, ...]
    closed: tuple[str, ...] = ()
    unscored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The best of a prompt's samples.

    Attributes:
        sample: its number among them, from 0.
        response: the response.
        totals: the total reward of each sample, in order; what PPO would give them, KL aside. None of a sample that a
            component has no score of; it is chosen only where no sample has one.
        segments: what the chosen response's total is made of, component by component.
    """

    sample: int
    response: Response
    totals: tuple[float | None, ...]
    segments: tuple[RewardedSegment, ...]

    @property
    def total(self) -> float | None:
        """The total reward of the chosen response; None where it is not known."""
        return self.totals[self.sample]


def best_sample(totals: Sequence[float | None]) -> int:
    """The number of the highest total; of equal ones (`TIE`) the first, and of totals that are all unknown.

    Raises:
        ValueError: there is none.
    """
    if not totals:
        raise ValueError("the list of totals is empty")
    highest = max((total for total in totals if total is not None), default=None)
    if highest is None:
        return 0
    return next(i for i, total in enumerate(totals) if total is not None and total >= highest - TIE)


class BestOf:
    """Chooses among samples by the reward that PPO trains on.

    Args:
        composer: components, weights and settings; the caller sets it up.
        processes: give the precision.

    Raises:
        ConfigError: a component is normalised by what a training run has seen.
    """

    def __init__(self, composer: RewardComposer, processes: Processes) -> None:
        self.composer, self._processes = composer, processes
        self.composer.totals(self.composer.score([], []))  # what cannot be added up is refused before models are read

    def choose(self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]]) -> list[Choice]:
        """The best sample of each prompt; see `reward`."""
        choices = []
        for group in self.reward(prompts, groups):
            totals = tuple(rewarded.total for rewarded in group)
            best = best_sample(totals)
            choices.append(Choice(best, group[best].response, totals, group[best].segments))
        return choices

    def reward(
        self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]]
    ) -> Iterator[list[RewardedResponse]]:
        """The samples of each prompt with their rewards, prompt by prompt.

        Equal texts of a prompt are scored once, so that no rounding tells them apart.

        Args:
            prompts: with the metadata that scorers need.
            groups: the samples of each prompt, at least one.

        Raises:
            DataError: a prompt lacks what a scorer needs.
        """
        size = max(1, _SCORED_AT_ONCE // max((len(group) for group in groups), default=1))
        for start in range(0, len(prompts), size):
            yield from self._reward(prompts[start : start + size], groups[start : start + size])

    @torch.no_grad()
    def _reward(self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]]) -> list[list[RewardedResponse]]:
        row_of: dict[tuple[int, str], int] = {}
        for number, group in enumerate(groups):
            for response in group:
                row_of.setdefault((number, response.text), len(row_of))
        with self._processes.autocast():
            scores = self.composer.score([prompts[number] for number, _ in row_of], [text for _, text in row_of])
        totals, used = self.composer.totals(scores), self.composer.used_values(scores)
        unscored = unscored_rows(scores.values())
        rewarded = []
        for number, group in enumerate(groups):
            rows = [row_of[number, response.text] for response in group]
            form = self._form(group)
            counted = {name: penalty.values for name, penalty in form.items()}
            taken = self.composer.totals(form) if form else [0.0] * len(group)
            rewarded.append(
                [
                    RewardedResponse(
                        response,
                        None if row in unscored else totals[row] + taken[sample],
                        self._segments(row, scores, used) + self._segments(sample, form, counted),
                        tuple(name for name in scores if (gate := self.composer.gate(name, scores)) and not gate[row]),
                        tuple(name for name, scored in scores.items() if row in scored.unscored),
                    )
                    for sample, (row, response) in enumerate(zip(rows, group, strict=True))
                ]
            )
        return rewarded

    def _form(self, group: Sequence[Response]) -> dict[str, SegmentScores]:
        """What the penalties for form count in the samples of a prompt."""
        lengths = [response.tokens + response.finished for response in group]
        ended, texts = [response.finished for response in group], [response.text for response in group]
        return self.composer.config.penalties.count(ended, lengths, texts)

    def _segments(
        self, row: int, scores: Mapping[str, SegmentScores], used: Mapping[str, Sequence[tuple[float, ...]]]
    ) -> tuple[RewardedSegment, ...]:
        weights = self.composer.weights_of(row, scores)
        return tuple(
            RewardedSegment(name, start, end, raw, normalised, weights[name] * normalised)
            for name, scored in scores.items()
            for (start, end), raw, normalised in zip(
                scored.spans[row], scored.values[row], used[name][row], strict=True
            )
        )
