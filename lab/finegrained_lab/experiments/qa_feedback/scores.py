"""Metrics of judged records with their spread over questions: every metric is a function of sums over records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.experiments.intervals import borders, resampled
from reward_models.kinds import Form
from reward_models.trust.calibration import BINS

if TYPE_CHECKING:
    from reward_models.trust.items import JudgedRecord


SEGMENT_METRICS = ("accuracy", "balanced_accuracy", "f1_has_error", "span_precision", "span_recall", "span_f1", "ece")
MAJORITY = "majority"
"""The judge that says the most frequent label of everything."""
PAIR_METRICS = ("pair_accuracy", "ece")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A metric with its interval.

    Attributes:
        value: on the records as they are.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def metrics_of(form: Form) -> tuple[str, ...]:
    """The metrics of a form of model, the headline ones first."""
    return SEGMENT_METRICS if form == "segment" else PAIR_METRICS


def sums_of(records: Sequence[JudgedRecord], form: Form) -> Array:
    """What the metrics are made of: one row a record, float64 [R, 8 + 3·bins], or [R, 2 + 3·bins] for pairs.

    Segments: found, missed, false alarms, clean; marked spans found and all, claimed spans right and all. Pairs: right
    ones and all. Then of each bin of probabilities: items, Σ probability, Σ outcome.
    """
    rows = []
    for record in records:
        if form == "segment":
            truth, claims = np.array(record.has_error, bool), np.array(record.claims, bool)
            own = [truth & claims, truth & ~claims, ~truth & claims, ~truth & ~claims]
            counts = [float(part.sum()) for part in own]
            counts += [record.found, record.annotated, record.right, record.claimed]
            rows.append([*counts, *_binned(np.array(record.probabilities), truth.astype(float), 0.0)])
        else:
            gaps = np.array(record.gaps)
            right = (gaps > 0).astype(float)
            rows.append([right.sum(), len(gaps), *_binned(1 / (1 + np.exp(-np.abs(gaps))), right, 0.5)])
    return np.array(rows, dtype=np.float64)


def _binned(probabilities: Array, outcomes: Array, low: float) -> list[float]:
    edges = low + (1 - low) * np.arange(1, BINS) / BINS
    where = np.searchsorted(edges, probabilities, side="left")
    parts = (None, probabilities, outcomes)
    return [float(x) for part in parts for x in np.bincount(where, part, minlength=BINS)]


def scores(sums: Array, form: Form) -> dict[str, Array]:
    """The metrics of sums [..., 8 + 3·bins] (or [..., 2 + 3·bins]), each [...]; a ratio of nothing is 0."""
    bins = sums[..., -3 * BINS :].reshape(*sums.shape[:-1], 3, BINS)
    ece = _ratio(np.abs(bins[..., 2, :] - bins[..., 1, :]).sum(-1), bins[..., 0, :].sum(-1))
    if form == "sequence":
        return {"pair_accuracy": _ratio(sums[..., 0], sums[..., 1]), "ece": ece}
    found, missed, alarms, clean, spans_found, marked, right, claimed = (sums[..., i] for i in range(8))
    recall, specificity = _ratio(found, found + missed), _ratio(clean, clean + alarms)
    precision, coverage = _ratio(right, claimed), _ratio(spans_found, marked)
    return {
        "accuracy": _ratio(found + clean, found + missed + alarms + clean),
        "balanced_accuracy": (recall + specificity) / 2,
        "f1_has_error": _ratio(2 * found, 2 * found + missed + alarms),
        "span_precision": precision,
        "span_recall": coverage,
        "span_f1": _ratio(2 * precision * coverage, precision + coverage),
        "ece": ece,
    }


def _ratio(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros_like(part, dtype=np.float64), where=whole > 0)


def measure(records: Sequence[JudgedRecord], form: Form, seed: int = 0) -> dict[str, Measured]:
    """Metrics over all items of all records, with percentile intervals of a bootstrap over records (questions)."""
    sums = sums_of(records, form)
    values, drawn = scores(sums.sum(0), form), scores(resampled(sums, seed), form)
    return {name: Measured(float(values[name]), *borders(drawn[name])) for name in values}


def difference(
    ours: Sequence[JudgedRecord], theirs: Sequence[JudgedRecord], form: Form, metric: str, seed: int = 0
) -> Measured:
    """A metric of one judge less that of another on the records that both judged, with its paired interval.

    Raises:
        ValueError: they share no record.
    """
    other = {record.record: record for record in theirs}
    common = [record for record in ours if record.record in other]
    if not common:
        raise ValueError("the two judged no record in common")
    pair = [sums_of(common, form), sums_of([other[record.record] for record in common], form)]
    value = [float(scores(sums.sum(0), form)[metric]) for sums in pair]
    drawn = [scores(resampled(sums, seed), form)[metric] for sums in pair]  # the same seed draws the same records
    return Measured(value[0] - value[1], *borders(drawn[0] - drawn[1]))
