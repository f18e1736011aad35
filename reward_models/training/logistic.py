"""Ridge logistic regression on counted words: what the layer of counts begins with, and a baseline by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reward_models.data.examples import RewardExample

Array = NDArray[np.float64]
RIDGES = (0.1, 1.0, 10.0, 100.0)
INNER_FOLDS = 5
_STEPS = 25
_CONSTANT = 1e-6
"""A column that varies less than this is taken as it is."""


@dataclass(frozen=True)
class CountedItems:
    """The labelled items of one record.

    Attributes:
        rows: counts, float64 [n, F]: of each segment with a label; of each ordered pair, better less worse.
        labels: float64 [n]: 1 has an error, 0 has none; all 1 for pairs.
    """

    rows: Array
    labels: Array


def counted_items(example: RewardExample) -> CountedItems:
    """The items of an example whose inputs carry counts."""
    if example.pairs:
        counts = np.array([item.counts[0] for item in example.inputs])
        better, worse = (np.array(side) for side in zip(*example.pairs, strict=True))
        return CountedItems(counts[better] - counts[worse], np.ones(len(better)))
    known = [i for i, label in enumerate(example.labels) if label is not None]
    labels = np.array([float(bool(example.labels[i])) for i in known])
    return CountedItems(np.array([row for item in example.inputs for row in item.counts])[known], labels)


@dataclass(frozen=True)
class Logistic:
    """Log odds as a linear function of counts.

    Attributes:
        weights: float64 [F], 0 for columns that are not read.
        bias: 0 for pairs.
    """

    weights: Array
    bias: float

    def logits(self, rows: Array) -> Array:
        """Log odds of rows [n, F], float64 [n]."""
        logits: Array = rows @ self.weights + self.bias
        return logits


def fit_counts(records: Sequence[CountedItems], columns: Sequence[int], pairs: bool, balanced: bool = True) -> Logistic:
    """A ridge logistic regression; the ridge of `RIDGES` has the least log loss over inner folds of records.

    Args:
        records: to fit on, at least one item in all.
        columns: of the counts that may be read.
        pairs: fit differences without an intercept.
        balanced: let both labels of segments count the same in all.
    """
    losses = inner_losses(records, columns, pairs, balanced)
    return _fit(records, columns, pairs, balanced, RIDGES[int(np.argmin(losses))])


def inner_losses(
    records: Sequence[CountedItems], columns: Sequence[int], pairs: bool, balanced: bool = True
) -> list[float]:
    """The log loss of all items over inner folds of records, each judged without its fold, for each of `RIDGES`.

    Args:
        records: as in `fit_counts`.
        columns: the same.
        pairs: the same.
        balanced: the same.
    """
    losses = []
    for ridge in RIDGES:
        loss = 0.0
        for fold in range(INNER_FOLDS):
            inside = [item for i, item in enumerate(records) if i % INNER_FOLDS != fold]
            outside = [item for i, item in enumerate(records) if i % INNER_FOLDS == fold]
            if inside and outside:
                loss += _loss(_fit(inside, columns, pairs, balanced, ridge), outside)
        losses.append(loss)
    return losses


def _fit(
    records: Sequence[CountedItems], columns: Sequence[int], pairs: bool, balanced: bool, ridge: float
) -> Logistic:
    rows = np.concatenate([item.rows for item in records])
    chosen = rows[:, list(columns)]
    labels = np.concatenate([item.labels for item in records])
    mean = np.zeros(len(columns)) if pairs else chosen.mean(0)
    spread = chosen.std(0)
    scale = np.where(spread > _CONSTANT, spread, 1.0)
    solution = newton(
        (chosen - mean) / scale,
        labels,
        _row_weights(labels) if balanced else np.ones(len(labels)),
        ridge,
        intercept=not pairs,
    )
    weights = np.zeros(rows.shape[1])
    weights[list(columns)] = solution[: len(columns)] / scale
    return Logistic(weights, float(solution[len(columns) :].sum() - mean @ weights[list(columns)]))


def balanced_weights(errors: int, of: int) -> tuple[float, float]:
    """Weights of an item without and of one with an error under which both count the same in all, an item 1 on average.

    1 each where a label never occurs.
    """
    return (of / (2 * (of - errors)), of / (2 * errors)) if 0 < errors < of else (1.0, 1.0)


def _row_weights(labels: Array) -> Array:
    no_error, has_error = balanced_weights(int(labels.sum()), len(labels))
    return np.where(labels > 0, has_error, no_error)


def newton(rows: Array, labels: Array, weights: Array, ridge: float, intercept: bool) -> Array:
    """Coefficients [F (+ 1)] of a ridge logistic regression on rows [n, F], by Newton's method.

    They minimise Σ weights · log loss + ridge / 2 · |w|², the intercept (last) left out of the penalty.
    """
    x = np.hstack([rows, np.ones((len(rows), 1))]) if intercept else rows
    penalty = np.full(x.shape[1], ridge)
    penalty[rows.shape[1] :] = 1e-6
    solution: Array = np.zeros(x.shape[1])
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ solution, -30, 30)))
        gradient = x.T @ (weights * (p - labels)) + penalty * solution
        curvature = (x * (weights * p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        solution = solution - np.linalg.solve(curvature, gradient)
    return solution


def _loss(judge: Logistic, records: Sequence[CountedItems]) -> float:
    logits = np.concatenate([judge.logits(item.rows) for item in records])
    labels = np.concatenate([item.labels for item in records])
    return float(np.logaddexp(0, np.where(labels > 0, -logits, logits)).sum())
