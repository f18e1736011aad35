"""Weights of evidence: a logistic model of the sentences of generated folders, and the threshold that serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.experiments.asking.folders import Folders, OpenFolder, System, holds
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import OutputDirectory, OutputFile
from finegrained_rlhf.inscit.asking.evidence import FEATURES, RERANKED, EvidenceWeights
from finegrained_rlhf.inscit.asking.measures import best_threshold

_ALL = (*FEATURES, *RERANKED)
_FIRST = System(judges="encoder")
_INVERSE_RIDGE = 1.0  # of weights of standardised features
_SPEAK_AGAINST = ("elsewhere", "unnamed", "common")  # every other feature speaks for a sentence


@dataclass(frozen=True, kw_only=True)
class FitEvidence(Settings):
    """Fit weights and threshold of every system on the same folders.

    The threshold is chosen on scores of models that did not see the style: the mean is largest of the share of
    questions whose best sentence is right and probable enough, and of those that are refused as they must be.

    Attributes:
        folders: to fit on; every list is one kind of folder.
        systems: by name; those that search otherwise, or in other documents, have no weights of their own.
        directory: of folders and of what sentences are described by, which later runs find.
        output: JSON file with weights by system, and of each style what models say that were fitted on the others.
    """

    folders: Sequence[Folders]
    systems: Mapping[str, System]
    directory: OutputDirectory
    output: OutputFile

    def run(self) -> None:
        """Describe, fit, write."""
        first = _fitted(self._described("first", _FIRST, None), _FIRST)
        made: dict[str, Any] = {"first": asdict(first.weights)}
        for name, system in self.systems.items():
            if system.retrievers is not None or system.injected:
                continue
            kind = "words" if system.judges == "words" else "first" if system.judges == "encoder" else "reranked"
            fitted = _fitted(self._described(kind, system, first.weights), system)
            made[name] = {**asdict(fitted.weights), "by_style": fitted.by_style}
            print(f"{name}: threshold {fitted.weights.threshold:.2f}, {fitted.by_style['all']}")
        write_json(self.output, made)

    def _described(self, kind: str, system: System, first: EvidenceWeights | None) -> list[dict[str, Any]]:
        """A row a question of all folders; what was described before is read."""
        rows: list[dict[str, Any]] = []
        for of_size in self.folders:
            root = Path(self.directory) / str(of_size.files)
            for style, seed in of_size.names():
                file = root / f"{style}_{seed}" / f"{kind}.json"
                if not file.is_file():
                    folder = of_size.open(root, style, seed)
                    write_json(file, _describe(folder, of_size, system, first))
                rows += [{"style": style, **row} for row in read_json(file)]
        return rows


def _describe(
    folder: OpenFolder, settings: Folders, system: System, first: EvidenceWeights | None
) -> list[dict[str, Any]]:
    flat = EvidenceWeights(0.0, {}, 0.5)
    assistant = folder.with_system(System(judges=system.judges), flat, first or flat, settings.encoders())
    rows = []
    for asked in folder.questions:
        found = assistant.scorer.candidates(asked.text, assistant.search(asked.text))
        right = [one.passage.file == asked.file and holds(asked.fact, one.text) for one in found]
        rows.append(
            {"stated": asked.fact is not None, "features": [list(one.features) for one in found], "right": right}
        )
    return rows


@dataclass(frozen=True)
class _Fitted:
    weights: EvidenceWeights
    by_style: dict[str, Any]


def _fitted(rows: Sequence[Mapping[str, Any]], system: System) -> _Fitted:
    """Weights of all rows; threshold and figures by models that did not see the style."""
    numbers = [len(row["features"]) for row in rows]
    features = np.array([one for row in rows for one in row["features"]])
    right = np.array([one for row in rows for one in row["right"]])
    styles = np.repeat([row["style"] for row in rows], numbers)
    names = _ALL[: features.shape[1]]
    signs = [0 if name in system.without else -1 if name in _SPEAK_AGAINST else 1 for name in names]
    scores = np.zeros(len(features))
    for style in dict.fromkeys(styles.tolist()):
        other = styles != style
        bias, weights = _logistic(features[other], right[other], signs)
        scores[~other] = 1 / (1 + np.exp(-(features[~other] @ weights + bias)))
    ends = np.cumsum(numbers)
    best: list[tuple[float, bool | None]] = []
    for row, end, number in zip(rows, ends, numbers, strict=True):
        part = scores[end - number : end]
        top = int(part.argmax()) if number else -1
        score = float(part[top]) if number else 0.0
        best.append((score, (bool(row["right"][top]) if number else False) if row["stated"] else None))
    threshold, _ = best_threshold(best)
    bias, weights = _logistic(features, right, signs)
    rounded = {name: round(float(weight), 3) for name, weight in zip(names, weights, strict=True) if weight}
    by_style = {"all": _shares(best, threshold)}
    for style in dict.fromkeys(row["style"] for row in rows):
        of_style = [one for one, row in zip(best, rows, strict=True) if row["style"] == style]
        by_style[style] = _shares(of_style, threshold)
    return _Fitted(EvidenceWeights(round(bias, 3), rounded, round(threshold, 3)), by_style)


def _shares(best: Sequence[tuple[float, bool | None]], threshold: float) -> dict[str, float]:
    stated = [(score, right) for score, right in best if right is not None]
    absent = [score for score, right in best if right is None]
    return {
        "best_is_right": round(sum(bool(right) for _, right in stated) / len(stated), 3),
        "held": round(sum(bool(right) and score >= threshold for score, right in stated) / len(stated), 3),
        "refused": round(sum(score < threshold for score in absent) / len(absent), 3),
    }


def _logistic(
    features: NDArray[np.float64], right: NDArray[np.bool_], signs: Sequence[int]
) -> tuple[float, NDArray[np.float64]]:
    """Bias and weights of the features as they are, fitted to standardised ones.

    A feature whose weight would have the other sign is left out, so that no sentence is less probable for being nearer.
    """
    from sklearn.linear_model import LogisticRegression

    mean, spread = features.mean(axis=0), features.std(axis=0)
    kept = [i for i, sign in enumerate(signs) if sign and spread[i] > 0]
    while True:
        standardised = (features[:, kept] - mean[kept]) / spread[kept]
        model = LogisticRegression(C=_INVERSE_RIDGE, max_iter=5_000).fit(standardised, right)
        good = [i for i, weight in zip(kept, model.coef_[0], strict=True) if weight * signs[i] > 0]
        if good == kept:
            break
        kept = good
    weights = np.zeros(len(signs))
    weights[kept] = model.coef_[0] / spread[kept]
    return float(model.intercept_[0] - weights @ mean), weights
