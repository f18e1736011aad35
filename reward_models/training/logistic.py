"""Linear scores fitted by Newton's method, whose ridge inner folds choose: of items, and of the rows of lists.

The logistic regression of items on counted words is what the layer of counts begins with, and a baseline by itself; the
softmax of a list says which of its rows is the one, or how it is shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from reward_models.data.examples import RewardExample

Array = NDArray[np.float64]
Item = TypeVar("Item")
Fitted = TypeVar("Fitted")
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


def _losses(
    items: Sequence[Item],
    fit: Callable[[Sequence[Item], float], Fitted],
    loss: Callable[[Fitted, Sequence[Item]], float],
) -> list[float]:
    """Of each of `RIDGES`, the loss of all items over inner folds, each judged by a fit without its fold."""
    losses = []
    for ridge in RIDGES:
        total = 0.0
        for fold in range(INNER_FOLDS):
            inside = [item for i, item in enumerate(items) if i % INNER_FOLDS != fold]
            outside = items[fold::INNER_FOLDS]
            if any(inside) and any(outside):
                total += loss(fit(inside, ridge), outside)
        losses.append(total)
    return losses


def inner_losses(
    records: Sequence[CountedItems], columns: Sequence[int], pairs: bool, balanced: bool = True
) -> list[float]:
    """The log loss of all items over inner folds of records, for each of `RIDGES`; arguments as of `fit_counts`."""
    return _losses(records, lambda some, ridge: _fit(some, columns, pairs, balanced, ridge), _loss)


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


_ENOUGH = 1e-8


@dataclass(frozen=True)
class RatedList:
    """What is compared within one question.

    Attributes:
        rows: features, float64 [n, F].
        target: float64 [n] ≥ 0 with sum 1: the share of each row; of a best one and worse ones 1, 0, ….
        weight: what the list counts.
    """

    rows: Array
    target: Array
    weight: float = 1.0


def best_of(best: Array, worse: Sequence[Array], weight: float = 1.0) -> RatedList:
    """The list of a row and those that it is better than; with one of them its loss is that of an ordered pair."""
    return RatedList(np.array([best, *worse]), np.eye(1, len(worse) + 1)[0], weight)


class _Joined:
    """Rows of several lists behind one another."""

    def __init__(self, lists: Sequence[RatedList]) -> None:
        sizes = [len(one.target) for one in lists]
        self.rows, self.target = (np.concatenate([getattr(one, name) for one in lists]) for name in ("rows", "target"))
        self.starts, self.place = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)
        self.weight = np.array([one.weight for one in lists])

    def probabilities(self, logits: Array) -> Array:
        """Softmax within each list, [Σ n]."""
        powers = np.exp(logits - np.maximum.reduceat(logits, self.starts)[self.place])
        return np.asarray(powers / np.add.reduceat(powers, self.starts)[self.place])


def fit_lists(lists: Sequence[RatedList], ridge: Array) -> Array:
    """Weights w that minimise Σ weight · cross-entropy(target, softmax(rows · w)) + ½ Σ ridge · w², by Newton's method.

    Args:
        lists: at least one.
        ridge: of each feature, [F], > 0.
    """
    joined, solution = _Joined(lists), np.zeros(len(ridge))
    rows, counting = joined.rows, joined.weight[joined.place]
    for _ in range(_STEPS):
        p = joined.probabilities(rows @ solution)
        means = np.add.reduceat(p[:, None] * rows, joined.starts)
        curvature = (rows * (counting * p)[:, None]).T @ rows - (means * joined.weight[:, None]).T @ means
        gradient = rows.T @ (counting * (p - joined.target)) + ridge * solution
        step = np.linalg.solve(curvature + np.diag(ridge), gradient)
        solution = solution - step
        if np.abs(step).max(initial=0.0) < _ENOUGH:
            break
    return solution


def list_loss(lists: Sequence[RatedList], weights: Array) -> float:
    """Σ weight · cross-entropy of lists under weights [F]."""
    joined = _Joined(lists)
    p = joined.probabilities(joined.rows @ weights)
    return float(-(joined.weight[joined.place] * joined.target * np.log(np.maximum(p, 1e-300))).sum())


def fit_answers(questions: Sequence[Sequence[RatedList]], columns: Sequence[int]) -> Array:
    """Weights of some columns, [F]; the ridge of `RIDGES` has the least loss over inner folds of questions.

    Args:
        questions: the lists of each.
        columns: that may be read; the weights of the others are 0.
    """
    spread = np.concatenate([one.rows - one.rows[0] for lists in questions for one in lists]).std(0)
    scale = np.where(spread > 1e-6, spread, 1.0)[list(columns)]
    scaled = [[RatedList(one.rows[:, list(columns)] / scale, one.target, one.weight) for one in q] for q in questions]

    def fitted(some: Sequence[Sequence[RatedList]], ridge: float) -> Array:
        return fit_lists([one for lists in some for one in lists], np.full(len(columns), ridge))

    losses = _losses(scaled, fitted, lambda weights, some: list_loss([one for lists in some for one in lists], weights))
    weights = np.zeros(questions[0][0].rows.shape[1])
    weights[list(columns)] = fitted(scaled, RIDGES[int(np.argmin(losses))]) / scale
    return weights
