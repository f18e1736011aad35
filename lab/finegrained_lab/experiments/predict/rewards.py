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
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import ComponentConfig, RewardConfig
from finegrained_rlhf.rewards.protocol import BaseScorer
from finegrained_rlhf.rewards.stress.changes import TOTAL, Change
from finegrained_rlhf.rewards.stress.measure import RatedTexts, roles_of, spreads, verdicts

EMPTY = {"relevance": -1.0, "factuality": -1.0}
"""Of an answer without a word: this project's defaults (`reward.settings.NAME.empty`); of all other components 0."""
WHOLE = "completeness"
"""The component that gives a whole answer one value."""

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


class KeptScorer(BaseScorer):
    """Gives texts again what a reward model once gave them.

    Args:
        values: by id of the prompt and text, segments as `[start, end, value]`.
        whole: whether a response has one value.
    """

    def __init__(self, values: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], whole: bool) -> None:
        self._values, self._whole = values, whole

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """What was kept; see `Scorer`."""
        rows = [self._values[prompt.id][text] for prompt, text in zip(prompts, responses, strict=True)]
        spans = tuple(tuple((int(start), int(end)) for start, end, _ in row) for row in rows)
        values = tuple(tuple(value for _, _, value in row) for row in rows)
        return SegmentScores(spans, values, whole_response=self._whole)


@dataclass(frozen=True)
class Reward:
    """A weighted sum of components, as training composes it.

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

    @cached_property
    def rated(self) -> RatedTexts:
        """All texts with what the reward gives them."""
        scorers = {kind: KeptScorer(one["values"], kind == WHOLE) for kind, one in self.scored.items()}
        settings = {kind: ComponentConfig(empty=EMPTY.get(kind, 0.0)) for kind in scorers}
        config = RewardConfig(components=scorers, weights=dict(self.weights), settings=settings)
        rated = RatedTexts(RewardComposer(config), self.shown.prompts, roles_of(scorers, {}))
        rated.add(self.shown.texts())
        return rated

    def total(self, question: str, text: str) -> float:
        """The sum that training is paid by."""
        value = self.rated.value(question, text, TOTAL)
        assert value is not None
        return value

    @cached_property
    def totals(self) -> list[list[float]]:
        """Of each question of the pool the total of each sample."""
        return [[self.total(record.id, text) for text in record.outputs] for record in self.shown.pool]

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the total among samples of one question."""
        return spread_within(self.totals)

    def stress(self) -> dict[str, dict[str, float]]:
        """By change the share of pairs of which `all` that had to follow did, and that of each role."""
        spread = spreads(self.rated, {record.id: record.outputs for record in self.shown.pool})
        met: dict[str, dict[str, dict[Change, bool]]] = {}
        for one in verdicts(self.shown.changes, self.rated, spread):
            for role in ("all", one.expectation.role):
                flags = met.setdefault(one.change.name, {}).setdefault(role, {})
                flags[one.change] = flags.get(one.change, True) and one.right
        return {name: {role: fmean(flags.values()) for role, flags in roles.items()} for name, roles in met.items()}

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
        agreed = []
        for other in others:
            for first, second in zip(self.totals, other.totals, strict=True):
                agreed.append(spearman(first, second) or 0.0)
        return 1.0 - fmean(agreed) if agreed else math.nan

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
            curves["error"].append(truth.error(sums.tolist()))
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
