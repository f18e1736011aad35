"""From scores of candidates to a set of passages, and the thresholds that are chosen for it.

Source: thesis, section 5.4.2, and the authors' repository (commit 2319fb8) for the criterion of the mean number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Annotated, Any, Literal, get_args

import numpy as np

from finegrained_rlhf.core.checks import get_field, is_number, require
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.dialki.model.search import SelectBy, passages_above
from finegrained_rlhf.inscit.evaluation.scoring import passage_f1
from finegrained_rlhf.inscit.identifier.candidates import SELECTED

TuneBy = Literal["repository", "pi_f1"]
"""How γ is chosen: a mean number of passages of 1.5 on a grid of logits, or the highest PI-F1."""
MEAN_PASSAGES = 1.5
GRID = tuple(step / 10 for step in range(50))
_QUANTILES = 200


@dataclass(frozen=True)
class EvidenceSelection(Settings):
    """Which candidates are selected: the best one, and more of them while their scores exceed γ.

    Attributes:
        score: what the thresholds are compared with: `logits`, `probabilities` among the candidates, or `sigmoid`.
        threshold: γ; None selects the best one alone.
        empty: nothing is selected where the best score does not exceed this; None selects always.
        most: at most so many.
    """

    score: SelectBy = "logits"
    threshold: float | None = None
    empty: float | None = None
    most: Annotated[int, at_least(1)] = SELECTED

    def of(self, scored: Mapping[str, float]) -> tuple[str, ...]:
        """The ids of the selected candidates of a turn, the highest score first; of equal ones the earlier candidate.

        Args:
            scored: the score of each candidate by its id, at least one.
        """
        if self.empty is not None and max(scored.values()) <= self.empty:
            return ()
        ids = list(scored)
        return tuple(ids[i] for i in passages_above(list(scored.values()), self.threshold, self.most, range(len(ids))))

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EvidenceSelection:
        """Read what `to_json` gave.

        Raises:
            DataError: naming the field.
        """
        values = {field.name: get_field(row, field.name, "selection.") for field in fields(cls)}
        known = ", ".join(get_args(SelectBy))
        score, most = values["score"], values["most"]
        require(score in get_args(SelectBy), f"expected one of {known}, got {score!r}", "selection.score")
        for name in ("threshold", "empty"):
            number = values[name] is None or is_number(values[name])
            require(number, f"expected a number or null, got {values[name]!r}", f"selection.{name}")
        right = isinstance(most, int) and most >= 1
        require(right, f"expected a whole number of at least 1, got {most!r}", "selection.most")
        return cls(**values)


def check_tune_by(value: str, score: SelectBy) -> None:
    """Raise ConfigError for a criterion that does not exist, or that other scores are made for."""
    if value not in get_args(TuneBy):
        raise ConfigError(f"tune: expected null or one of {', '.join(get_args(TuneBy))}, got {value!r}")
    if value == "repository" and score != "logits":
        raise ConfigError(f"tune: the repository's grid is one of logits, expected score=logits, got {score}")


def tuned_selection(
    scored: Sequence[Mapping[str, float]],
    labels: Sequence[Sequence[Collection[str]]],
    tune: TuneBy,
    score: SelectBy = "logits",
    most: Annotated[int, at_least(1)] = SELECTED,
    allow_empty: bool = False,
) -> EvidenceSelection:
    """The thresholds that a criterion chooses on some turns.

    `repository`: of 0.0, 0.1, … 4.9 the γ whose mean number of passages is nearest to 1.5, the lowest such. `pi_f1`: of
    200 quantiles of the scores the γ with the highest PI-F1, the highest such.

    Args:
        scored: of each turn, at least one, the score of each candidate by its id.
        labels: the evidence of each label of each turn.
        tune: the criterion of γ.
        score: what the scores are.
        most: passages a turn.
        allow_empty: choose `empty` as well, by the highest PI-F1 where nothing selected for a label without evidence
            counts 1; with `pi_f1` together with γ, else after it. Of equals the one that empties the fewest turns.
    """
    check_tune_by(tune, score)
    turns = list(zip(scored, labels, strict=True))
    tops = np.array([max(row.values()) for row in scored])
    nothing = np.array([float(any(not evidence for evidence in own)) for own in labels])

    def judged(threshold: float) -> tuple[float, EvidenceSelection]:
        one = EvidenceSelection(score, threshold, None, most)
        f1 = np.array([max(passage_f1(one.of(row), evidence) for evidence in own) for row, own in turns])
        empty, value = _best_empty(tops, nothing, f1) if allow_empty else (None, float(f1.mean()))
        return value, EvidenceSelection(score, threshold, empty, most)

    if tune == "repository":
        return judged(_nearest_mean(scored, most))[1]
    scores = np.array([value for row in scored for value in row.values()])
    quantiles = np.quantile(scores, np.linspace(0, 1, min(_QUANTILES, len(scores))))
    best = max((judged(float(value)) for value in np.unique(quantiles)), key=lambda pair: (pair[0], pair[1].threshold))
    return best[1]


def _nearest_mean(scored: Sequence[Mapping[str, float]], most: int) -> float:
    """The first γ of the grid at which the mean number of passages is nearest to `MEAN_PASSAGES`."""

    def distance(threshold: float) -> float:
        selection = EvidenceSelection(threshold=threshold, most=most)
        return abs(sum(len(selection.of(row)) for row in scored) - MEAN_PASSAGES * len(scored))

    return min(GRID, key=distance)


def _best_empty(tops: Any, nothing: Any, f1: Any) -> tuple[float | None, float]:
    """The best second threshold, and the mean PI-F1 with it.

    Args:
        tops: float [n], the highest score of each turn.
        nothing: float [n], PI-F1 of an empty set.
        f1: float [n], PI-F1 of what is selected otherwise.
    """
    order = np.argsort(tops, kind="stable")
    tops, gain = tops[order], (nothing - f1)[order]
    sums = [0.0, *accumulate(gain.tolist())]
    cuts = [0, *(k for k in range(1, len(tops) + 1) if k == len(tops) or tops[k] > tops[k - 1])]
    cut = max(cuts, key=lambda k: (round(sums[k], 12), -k))
    return (float(tops[cut - 1]) if cut else None), float((f1.sum() + sums[cut]) / len(tops))
