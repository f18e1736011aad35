"""Strategies that say which answers people should annotate next, by what trained reward models make of them.

Each orders items, the most wanted first; how many are taken, and the share that is left to chance, is the annotation
room's. Sources: Lewis and Gale 1994 (uncertainty), Seung et al. 1992 (disagreement of a committee), Sener and Savarese
2018 (k-centre).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import InputFile, ModelName
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs

if TYPE_CHECKING:
    from reward_models.selection.answers import AnsweredQuestion, AnswerReader, Array


@dataclass(frozen=True, kw_only=True)
class _ByModels(Settings):
    """A strategy that asks trained models.

    Attributes:
        models: directories or runs of trained reward models, or Hub names.
        batch_size: answers in one forward pass.
        device: `cpu`, `cuda`, …; None takes a GPU where there is one.
    """

    models: Sequence[ModelName]
    batch_size: int = 32
    device: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("models: expected one reward model or more")
        self._readers()

    def _readers(self) -> list[AnswerReader]:
        from reward_models.selection.answers import AnswerReader

        return [AnswerReader(path, self.batch_size, self.device) for path in self.models]


@dataclass(frozen=True, kw_only=True)
class UncertainSelection(_ByModels):
    """Where the models know least: the mean entropy of what they think probable, over segments, then over models.

    Attributes:
        name: in the items.
    """

    name: str = "uncertain"

    def order(self, items: Sequence[AnsweredQuestion]) -> list[int]:
        """The places of all items, the highest entropy first. Raises what reading a model raises."""
        return _highest_first(
            sum(np.array([_mean(_entropy(row)) for row in reader.probabilities(items)]) for reader in self._readers())
        )


@dataclass(frozen=True, kw_only=True)
class DisagreeSelection(_ByModels):
    """Where models of one kind, trained alike but for the seed, say different things.

    Attributes:
        name: in the items.
    """

    name: str = "disagree"

    def order(self, items: Sequence[AnsweredQuestion]) -> list[int]:
        """The places of all items, the widest mean range of probabilities first.

        Raises:
            ConfigError: only one model of a kind, or models that cut an answer differently.
        """
        kinds: dict[str, list[AnswerReader]] = defaultdict(list)
        for reader in self._readers():
            kinds[reader.kind].append(reader)
        for kind, readers in kinds.items():
            if len(readers) < 2:
                raise ConfigError(f"models: expected two {kind} models or more, of different seeds, got 1")
        total = np.zeros(len(items))
        for readers in kinds.values():
            probabilities = [reader.probabilities(items) for reader in readers]
            for number, of_item in enumerate(zip(*probabilities, strict=True)):
                if len({len(row) for row in of_item}) > 1:
                    problem = f"the {readers[0].kind} models cut item {items[number].id!r} differently"
                    raise ConfigError(f"models: {problem}; expected models that differ in their seed alone")
                total[number] += _mean(np.ptp(np.stack(of_item), axis=0))
        return _highest_first(total)


@dataclass(frozen=True, kw_only=True)
class DriftSelection(_ByModels):
    """Where the policy found reward while the reward models lost hold: the rise since an earlier policy's answers.

    The rise of each model is divided by its standard deviation over the items, and counts by how far the model's trust
    fell during the PPO run, as `finegrained measure-drift` saw it: of models of whole answers the agreement, of segment
    models the mean of recall and of 1 − false alarm rate, since agreement rises merely because errors become rare.

    Attributes:
        before: JSON-lines file of an earlier policy's outputs (`finegrained sample-outputs`) to the same questions, by
            id.
        drift: `drift.json` of the PPO run; its components are the kinds of the models. None lets all count alike.
        name: in the items.
    """

    before: InputFile
    drift: InputFile | None = None
    name: str = "drift"

    def order(self, items: Sequence[AnsweredQuestion]) -> list[int]:
        """The places of all items, the greatest rise first.

        Raises:
            DataError: an item's question has no earlier outputs, or the drift is no report of one.
            ConfigError: a model is no component of the report, or no model's trust fell.
        """
        known = {record.id: record for record in read_outputs(self.before)}
        earlier: list[_Earlier] = []
        counts = []
        for item in items:
            if item.id not in known:
                raise DataError(f"no outputs to the question of item {item.id!r}", file=self.before, field="id")
            own = _Earlier.all_of(known[item.id])
            if not own:
                raise DataError("every output is empty", file=self.before, record=item.id)
            earlier += own
            counts.append(len(own))
        readers, owners = self._readers(), np.repeat(np.arange(len(items)), counts)
        falls = self._falls([reader.kind for reader in readers])
        total = np.zeros(len(items))
        for reader, fall in zip(readers, falls, strict=True):
            if fall > 0:
                before = np.bincount(owners, weights=reader.rewards(earlier), minlength=len(items)) / counts
                rise = reader.rewards(items) - before
                total += fall * rise / (rise.std() or 1.0)
        return _highest_first(total)

    def _falls(self, kinds: Sequence[str]) -> list[float]:
        """How far the trust in each kind's component fell."""
        if self.drift is None:
            return [1.0] * len(kinds)
        report = read_json(self.drift)
        components = report.get("components") if isinstance(report, Mapping) else None
        if not isinstance(components, Mapping):
            raise DataError("expected a report of finegrained measure-drift", file=self.drift, field="components")
        falls = []
        for kind in kinds:
            if kind not in components:
                raise ConfigError(f"drift: {self.drift} has {', '.join(components) or 'no component'}, not {kind}")
            falls.append(_fall(components[kind], self.drift))
        if not any(fall > 0 for fall in falls):
            raise ConfigError(f"drift: no model's trust fell in {self.drift}; choose by another strategy")
        return falls


@dataclass(frozen=True, kw_only=True)
class DiverseSelection(_ByModels):
    """Answers that are unlike each other: greedy k-centre on the hidden states that the models' heads read.

    Each model's states are divided by their root mean square distance from the mean, so that all count alike.

    Attributes:
        name: in the items.
    """

    name: str = "diverse"

    def order(self, items: Sequence[AnsweredQuestion]) -> list[int]:
        """The places of all items: the one nearest to the mean, then each time the one farthest from all before it."""
        if not items:
            return []
        return farthest_first(np.concatenate([_scaled(reader.states(items)) for reader in self._readers()], axis=1))


def farthest_first(points: Array) -> list[int]:
    """All rows of `points` [n, D], n ≥ 1, in greedy k-centre order, beginning with the one nearest to the mean."""
    order = [int(np.argmin(((points - points.mean(axis=0)) ** 2).sum(axis=1)))]
    nearest = np.full(len(points), np.inf)
    while len(order) < len(points):
        nearest = np.minimum(nearest, ((points - points[order[-1]]) ** 2).sum(axis=1))
        nearest[order[-1]] = -1.0
        order.append(int(np.argmax(nearest)))
    return order


@dataclass(frozen=True)
class _Earlier:
    """One earlier output, as what a model reads."""

    id: str
    question: str
    passages: Any
    answers: tuple[str, ...]
    marked: int | None = 0

    @classmethod
    def all_of(cls, record: OutputRecord) -> list[_Earlier]:
        return [cls(record.id, record.question, record.passages, (text,)) for text in record.outputs if text.strip()]


def _fall(rows: Any, file: str) -> float:
    try:
        known = [trust for row in rows if (trust := _trust(row)) is not None]
        return max(0.0, known[0] - known[-1])
    except (TypeError, KeyError, IndexError):
        raise DataError("expected the agreement of each step", file=file, field="components") from None


def _trust(row: Mapping[str, Any]) -> float | None:
    if row["recall"] is not None and row["false_alarm_rate"] is not None:
        return float(row["recall"] + 1 - row["false_alarm_rate"]) / 2
    return row["agreement"] if row["errors"] is None else None


def _entropy(probabilities: Array) -> Array:
    """Of coins, in nats."""
    inner = np.clip(probabilities, 1e-12, 1 - 1e-12)
    return -(inner * np.log(inner) + (1 - inner) * np.log(1 - inner))


def _mean(values: Array) -> float:
    """0 of nothing."""
    return float(values.mean()) if len(values) else 0.0


def _scaled(states: Array) -> Array:
    centred = states - states.mean(axis=0)
    scaled: Array = centred / (np.sqrt((centred**2).sum(axis=1).mean()) or 1.0)
    return scaled


def _highest_first(scores: Any) -> list[int]:
    """Places by falling score; equal ones stay in their order."""
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order
