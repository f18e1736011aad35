"""One reward of the grid: its total on every text, from what its components said, and all that is measured of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from finegrained_lab.experiments.predict.pool import (
    SIZES,
    TIE,
    chances,
    divergence,
    pair_accuracy,
    spearman,
    spread_within,
)
from finegrained_lab.experiments.predict.texts import Shown
from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.rewards.stress.changes import Change, Expectation
from finegrained_rlhf.text.segmentation import Span

EMPTY = -1.0
"""Of relevance and factuality, an answer without a word: this project's default (`reward.settings.NAME.empty`)."""

Truth = Mapping[str, Mapping[str, tuple[float, ...]]]
"""By question and text: what is counted of it, e.g. errors and of how many."""


@dataclass(frozen=True)
class Measures:
    """What is true of texts of a world.

    Attributes:
        counts: of each sample, a vector.
        error: from sums of such vectors to the true error of a set of answers, in [0, 1].
        quality: of one answer, more is better.
    """

    counts: Truth
    error: Callable[[Sequence[float]], float]
    quality: Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Reward:
    """A weighted sum of components.

    Attributes:
        name: in tables.
        weights: by component.
        scored: what `RewardModelGrid` kept of each component.
        shown: the texts.
    """

    name: str
    weights: Mapping[str, float]
    scored: Mapping[str, Mapping[str, Any]]
    shown: Shown

    def component(self, kind: str, question: str, text: str, place: Span | None = None) -> float:
        """What a component gives a text: the sum of its segments, or the mean of those that a place touches."""
        segments = self.scored[kind]["values"][question][text]
        if place is None:
            return sum(value for _, _, value in segments) if text.strip() or kind == "completeness" else EMPTY
        touched = [value for start, end, value in segments if start < place[1] and end > place[0]]
        return fmean(touched) if touched else 0.0

    def total(self, question: str, text: str) -> float:
        """The sum that training is paid by."""
        return sum(weight * self.component(kind, question, text) for kind, weight in self.weights.items())

    @cached_property
    def totals(self) -> list[list[float]]:
        """Of each question of the pool the total of each sample."""
        return [[self.total(record.id, text) for text in record.outputs] for record in self.shown.pool]

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the total among samples of one question."""
        return spread_within(self.totals)

    @cached_property
    def _spreads(self) -> dict[str, float]:
        own = {
            kind: spread_within(
                [[self.component(kind, record.id, text) for text in record.outputs] for record in self.shown.pool]
            )
            for kind in self.weights
        }
        return {**own, "total": self.spread}

    def stress(self) -> dict[str, dict[str, float]]:
        """Share of expectations that are met, by change: over all of them, and of each role."""
        met: dict[str, dict[str, list[bool]]] = {}
        for change in self.shown.changes:
            for one in change.expectations:
                roles = met.setdefault(change.name, {})
                roles.setdefault(one.role, []).append(self._meets(change, one))
        return {
            name: {"all": fmean(flag for flags in roles.values() for flag in flags)}
            | {role: fmean(flags) for role, flags in roles.items()}
            for name, roles in met.items()
        }

    def _meets(self, change: Change, one: Expectation) -> bool:
        if one.role == "total":
            before, after = (self.total(change.record, text) for text in (change.base, change.changed))
        else:
            before = self.component(one.role, change.record, change.base, one.before)
            after = self.component(one.role, change.record, change.changed, one.after)
        if one.direction == "stay":
            return abs(after - before) <= self._spreads[one.role]
        return after < before - TIE if one.direction == "fall" else after <= before + TIE

    def price(self) -> float:
        """The share of a question's samples that its best truth-free edit is above, mean over questions."""
        shares = []
        for record, samples in zip(self.shown.pool, self.totals, strict=True):
            if edits := self.shown.edits.get(record.id):
                best = max(self.total(record.id, text) for text in edits)
                shares.append(fmean(best > sample + TIE for sample in samples))
        return fmean(shares)

    def trivial(self) -> dict[str, float]:
        """The mean total of each kind of trivial answer."""
        kinds = next(iter(self.shown.trivial.values()))
        return {
            kind: fmean(self.total(name, texts[kind]) for name, texts in self.shown.trivial.items()) for kind in kinds
        }

    def disagreement(self, others: Sequence[Reward]) -> float:
        """1 − the mean rank correlation with other rewards over the samples of a question, mean over questions."""
        found = []
        for other in others:
            for mine, its in zip(self.totals, other.totals, strict=True):
                found.append(spearman(mine, its) or 0.0)
        return 1.0 - fmean(found)

    def best_of(self, truth: Measures) -> dict[str, list[float]]:
        """By n of `SIZES`: the true `error` of best of n, its mean `quality`, the mean reward `proxy`, and the `kl`."""
        curves: dict[str, list[float]] = {name: [] for name in ("error", "quality", "proxy", "kl")}
        for n in SIZES:
            sums, quality, proxy = np.zeros(0), [], []
            for record, totals in zip(self.shown.pool, self.totals, strict=True):
                share = chances(totals, n)
                counts = np.array([truth.counts[record.id][text] for text in record.outputs])
                sums = share @ counts if not sums.size else sums + share @ counts
                quality.append(float(share @ np.array([truth.quality(row) for row in counts])))
                proxy.append(float(share @ np.array(totals)))
            curves["error"].append(truth.error(sums))
            curves["quality"].append(fmean(quality))
            curves["proxy"].append(fmean(proxy) / self.spread)
            curves["kl"].append(divergence(n))
        return curves

    def on_policy_accuracy(self, truth: Measures) -> float:
        """Share of pairs of samples that it orders as the truth does."""
        return pair_accuracy(
            [
                (totals, [truth.quality(truth.counts[record.id][text]) for text in record.outputs])
                for record, totals in zip(self.shown.pool, self.totals, strict=True)
            ]
        )


def row_of(reward: Reward, truth: Measures, others: Sequence[Reward], surface: Sequence[str]) -> dict[str, Any]:
    """All that is measured of a reward.

    Args:
        reward: the reward.
        truth: of the samples.
        others: of the same labels and another size, whom it may disagree with.
        surface: changes that are no part of the stress score.
    """
    stress, curves = reward.stress(), reward.best_of(truth)
    hard = [shares for name, shares in stress.items() if name not in surface]
    qualities = [
        [truth.quality(truth.counts[record.id][text]) for text in record.outputs] for record in reward.shown.pool
    ]
    gained = (curves["quality"][-1] - curves["quality"][0]) / spread_within(qualities)
    paid = curves["proxy"][-1] - curves["proxy"][0]
    if not math.isfinite(paid) or paid <= 0:
        raise ConsistencyError(f"{reward.name}: best of n has no more reward than one sample: {paid}")
    return {
        "reward": reward.name,
        "stress": fmean(shares["all"] for shares in hard),
        "stress_total": fmean(shares["total"] for shares in hard if "total" in shares),
        "stress_worst": min(shares["all"] for shares in hard),
        "surface": fmean(stress[name]["all"] for name in surface),
        "price": reward.price(),
        "dev_accuracy": fmean(float(one["dev"]["accuracy"]) for one in reward.scored.values()),
        "on_policy_accuracy": reward.on_policy_accuracy(truth),
        "variance": reward.spread**2,
        "disagreement": reward.disagreement(others),
        "error_1": curves["error"][0],
        "error_64": curves["error"][-1],
        "lowest_error": min(curves["error"]),
        "best_n": SIZES[int(np.argmin(curves["error"]))],
        "true_over_proxy": gained / paid,
        "changes": stress,
        "curves": curves,
        "trivial": reward.trivial(),
        "spread": reward.spread,
    }

