"""Fitting a linear score of the rows of lists by softmax: which row of its list is the one, or how it is shared out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reward_models.bottleneck.features import Array
from reward_models.training.logistic import INNER_FOLDS, RIDGES

_STEPS = 25
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

    losses = []
    for ridge in RIDGES:
        loss = 0.0
        for fold in range(INNER_FOLDS):
            inside = [lists for i, lists in enumerate(scaled) if i % INNER_FOLDS != fold]
            outside = [one for lists in scaled[fold::INNER_FOLDS] for one in lists]
            if any(inside) and outside:
                loss += list_loss(outside, fitted(inside, ridge))
        losses.append(loss)
    weights = np.zeros(questions[0][0].rows.shape[1])
    weights[list(columns)] = fitted(scaled, RIDGES[int(np.argmin(losses))]) / scale
    return weights
