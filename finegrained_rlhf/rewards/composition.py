"""Weighted composition of reward components, with the share of each kept apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import ComponentTrace, Prompt, RewardTrace, Rollout, SegmentScores
from finegrained_rlhf.rewards.aggregation import AGGREGATIONS, Aggregation, aggregate
from finegrained_rlhf.rewards.checks import check_scores, naming
from finegrained_rlhf.rewards.normalisation import Normaliser
from finegrained_rlhf.rewards.penalties import FormPenalties, OverlongPenalty
from finegrained_rlhf.rewards.placement import place_values, segment_tokens
from finegrained_rlhf.rewards.protocol import PromptCheckingScorer, Scorer, StartableScorer
from finegrained_rlhf.rl.stats import Reduce

Normalisation = Literal["none", "running"]
Density = Literal["segment", "response"]


@dataclass(frozen=True)
class ComponentConfig:
    """How one component enters the sum.

    Attributes:
        normalisation: `none` uses the scorer's values (the paper's choice); `running` subtracts the mean and divides by
            the standard deviation of all values this component gave in training so far, over all processes. Validation
            takes mean and standard deviation of the run's first validation instead, so that equal responses have equal
            scores throughout and the best checkpoint can be chosen.
        aggregation: `sum` lets every segment count in full (the paper); `mean` divides by the number of segments;
            `budget` rescales the values of a response until their absolute values add up to `budget`. With the last
            two a longer response does not earn more by its length alone.
        budget: in the component's unit, a response; used by `aggregation=budget` only.
        density: `segment` pays each segment where it ends; `response` pays their sum at the last token, which makes a
            holistic reward of a fine-grained one.
        empty: value, in the component's unit, of a response without a word, for components that score segments. Such a
            response has none; with 0 (the paper) it earns more than one with a single wrong segment. It goes on the
            response's last token, as the segment 0:0.
    """

    normalisation: Normalisation = "none"
    aggregation: Aggregation = "sum"
    budget: float = 1.0
    density: Density = "segment"
    empty: float = 0.0

    def __post_init__(self) -> None:
        known = {
            "normalisation": ("none", "running"),
            "aggregation": AGGREGATIONS,
            "density": ("segment", "response"),
        }
        for name, words in known.items():
            if getattr(self, name) not in words:
                raise ConfigError(f"reward {name} must be {' or '.join(words)}, got {getattr(self, name)!r}")
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise ConfigError(f"reward budget must be a positive number, got {self.budget!r}")
        if not math.isfinite(self.empty):
            raise ConfigError(f"reward empty must be a finite number, got {self.empty!r}")


@dataclass(frozen=True)
class RewardConfig:
    """The reward of a run.

    Attributes:
        components: scorers by name.
        weights: weight of each component by name; every component has one and no name is unknown.
        settings: further settings by component name.
        end_penalty: reward taken from a response without an end of sequence, on its last token, as the component
            `unfinished`; 0 (the paper) takes none.
        overlong: what tokens behind a limit cost, as the component `overlong`; nothing by default (the paper).
    """

    components: Mapping[str, Scorer]
    weights: Mapping[str, float]
    settings: Mapping[str, ComponentConfig] = field(default_factory=dict)
    end_penalty: float = 0.0
    overlong: OverlongPenalty = OverlongPenalty()

    def __post_init__(self) -> None:
        if not isinstance(self.overlong, OverlongPenalty):
            raise ConfigError(f"reward.overlong: expected an OverlongPenalty, got {self.overlong!r}")
        if not self.components:
            raise ConfigError("reward.components is empty: name at least one scorer")
        for place, names in (("weights", self.weights), ("settings", self.settings)):
            unknown = sorted(set(names) - set(self.components))
            if unknown:
                known = ", ".join(sorted(self.components))
                raise ConfigError(f"reward.{place}.{unknown[0]}: no such component; the reward has {known}")
        for name, scorer in self.components.items():
            if not isinstance(scorer, Scorer):
                raise ConfigError(f"reward.components.{name}: {type(scorer).__name__} has no setup() and score()")
            weight = self.weights.get(name)
            if weight is None or not math.isfinite(weight):
                raise ConfigError(f"reward.weights.{name}: expected a finite number, got {weight!r}")
        for name in sorted(set(self.penalties.weights) & set(self.components)):
            raise ConfigError(f"reward.components.{name}: this name is the penalty's; give the component another")

    @property
    def penalties(self) -> FormPenalties:
        """The penalties for form."""
        return FormPenalties(self.end_penalty, self.overlong)

    @property
    def all_weights(self) -> dict[str, float]:
        """The weights of the components, and of the penalties for form that are on, by name."""
        return {**self.weights, **self.penalties.weights}


class RewardComposer:
    """Scores rollouts with every component and adds the weighted results up.

    Args:
        config: scorers and weights.
        reduce: sums a small tensor over all processes (for `running` normalisation).
        eos_ids: the policy's ends of sequence, needed where `end_penalty` is on and rollouts are composed.
    """

    def __init__(
        self, config: RewardConfig, reduce: Reduce = lambda tensor: tensor, eos_ids: Sequence[int] = ()
    ) -> None:
        self.config, self._eos_ids = config, tuple(eos_ids)
        self._normalisers = {
            name: Normaliser(reduce) for name in config.components if self.settings(name).normalisation == "running"
        }

    def setup(self, device: torch.device) -> None:
        """Load every scorer."""
        for scorer in self.config.components.values():
            scorer.setup(device)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Let every component that can refuse prompts to which it could not score any response; after `setup`.

        Raises:
            DataError: there is such a prompt.
        """
        for scorer in self.config.components.values():
            if isinstance(scorer, PromptCheckingScorer):
                scorer.check_prompts(prompts)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> dict[str, SegmentScores]:
        """Raw scores of every component, in the order of the configuration; empty responses as `empty` says.

        Every scorer with a `start` is started before any other scores and before any result is waited for: while the
        device scores for one component, the CPU prepares the next.

        Raises:
            ConfigError: a component broke, or gave something else than finite values of segments inside each response;
                the error names it, the prompt and the response.
        """
        if not responses:
            return {name: SegmentScores((), ()) for name in self.config.components}
        given = {name: (name, scorer, prompts, responses) for name, scorer in self.config.components.items()}
        started: dict[str, Callable[[], SegmentScores]] = {}
        for name, scorer in self.config.components.items():
            if isinstance(scorer, StartableScorer):
                with naming(*given[name]):
                    started[name] = scorer.start(prompts, responses)
        scored: dict[str, object] = {}
        for name, scorer in self.config.components.items():
            if name not in started:
                with naming(*given[name]):
                    scored[name] = scorer.score(prompts, responses)
        for name, collect in started.items():
            with naming(*given[name]):
                scored[name] = collect()
        checked = {name: check_scores(name, scored[name], prompts, responses) for name in given}
        return {name: self._with_empty(name, result, responses) for name, result in checked.items()}

    def _with_empty(self, name: str, scores: SegmentScores, responses: Sequence[str]) -> SegmentScores:
        """The scores, with the segment 0:0 in place of none where a response has no word and its emptiness is paid."""
        value = self.settings(name).empty
        if value == 0.0 or scores.whole_response:
            return scores
        fill = [not spans and not text.strip() for spans, text in zip(scores.spans, responses, strict=True)]
        spans = tuple(((0, 0),) if empty else tuple(row) for empty, row in zip(fill, scores.spans, strict=True))
        values = tuple((value,) if empty else tuple(row) for empty, row in zip(fill, scores.values, strict=True))
        return SegmentScores(spans, values)

    def compose(self, rollout: Rollout, scores: Mapping[str, SegmentScores], *, train: bool = True) -> RewardTrace:
        """Normalise, aggregate, place on tokens, weigh, add up.

        Args:
            rollout: R responses.
            scores: of the same responses, by component name.
            train: True standardises `running` components by the running moments, which take the values in first; False
                by the fixed moments of the first validation (`fix_moments`).

        Returns:
            The trace, penalties for form after the components; `total` is exactly the sum of the `weighted` tensors in
            this order.

        Raises:
            ConfigError: see `used_values`; or `end_penalty` is on and the ends of sequence are not known.
        """
        components = {}
        scores = {**scores, **self.config.penalties.count_in(rollout, self._eos_ids)}
        weights = self.config.all_weights
        total = torch.zeros(rollout.response_ids.shape, dtype=torch.float32, device=rollout.response_ids.device)
        used = self.used_values(scores, train=train)
        for name, result in scores.items():
            ends = segment_tokens(result, rollout)
            tokens = ends
            if self.settings(name).density == "response":
                tokens = segment_tokens(replace(result, whole_response=True), rollout)
            raw = place_values(result.values, ends, rollout)
            normalised = raw
            if used[name] is not result.values or tokens is not ends:
                normalised = place_values(used[name], tokens, rollout)
            weight = float(weights[name])
            weighted = weight * normalised
            total = total + weighted
            components[name] = ComponentTrace(result, weight, raw, normalised, weighted, used[name], tokens)
        return RewardTrace(components=components, total=total)

    def settings(self, name: str) -> ComponentConfig:
        """The settings of a component; the defaults where the configuration has none."""
        return self.config.settings.get(name, ComponentConfig())

    def used_values(
        self, scores: Mapping[str, SegmentScores], *, train: bool = False
    ) -> dict[str, Sequence[tuple[float, ...]]]:
        """What the weights multiply: the values of each segment after normalisation and aggregation, by component.

        Args:
            scores: by component name.
            train: as in `compose`.

        Raises:
            ConfigError: a budget is set for a component that gives one value a response, of which only the sign would
                be left.
        """
        used = {}
        for name, result in scores.items():
            setting = self.settings(name)
            values = self._normalise(name, result, train)
            if setting.aggregation == "budget" and result.whole_response:
                raise ConfigError(
                    f"reward.settings.{name}.aggregation: a budget is for segments, and {name} scores whole responses"
                )
            if setting.aggregation != "sum":
                values = [aggregate(row, setting.aggregation, setting.budget) for row in values]
            used[name] = values
        return used

    def totals(self, scores: Mapping[str, SegmentScores]) -> list[float]:
        """The weighted sum of all components that are given, one number a response.

        Raises:
            ConfigError: a component is normalised by what a training run has seen, which is not known here.
        """
        for name in scores:
            if self.settings(name).normalisation != "none" and not self._normalisers[name].seen:
                raise ConfigError(f"reward.settings.{name}.normalisation: running moments exist in a training run only")
        used = self.used_values(scores)
        weights = self.config.all_weights
        parts = [[float(weights[name]) * sum(row) for row in rows] for name, rows in used.items()]
        return [sum(column) for column in zip(*parts, strict=True)]

    def fix_moments(self, scores: Mapping[str, Sequence[SegmentScores]]) -> None:
        """Fix the moments by which validations standardise; only the first call of a run does anything.

        Every process must call this.

        Args:
            scores: all batches of a validation (this process's share), by component name.
        """
        for name, normaliser in self._normalisers.items():
            normaliser.fix([row for batch in scores.get(name, ()) for row in batch.values])

    def _normalise(self, name: str, scores: SegmentScores, train: bool) -> Sequence[tuple[float, ...]]:
        normaliser = self._normalisers.get(name)
        if normaliser is None:
            return scores.values
        return normaliser.train(scores.values) if train else normaliser.validate(scores.values)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: the moments of normalised components."""
        return {name: normaliser.state() for name, normaliser in self._normalisers.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        for name, kept in state.items():
            if name in self._normalisers:
                self._normalisers[name].load_state(kept)
