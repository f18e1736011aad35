"""Fitting the bottleneck's heads: what is needed, then each component on what people said, and on planted changes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.rewards.stress.changes import Change, MakesChanges, run_changes
from finegrained_rlhf.rewards.stress.makers import BUILT_IN
from finegrained_rlhf.rewards.stress.reading import item_of
from reward_models.bottleneck.features import COMPLETENESS, FACTUALITY, RELEVANCE, Source
from reward_models.bottleneck.model import COMPLETE, COMPONENTS, PREFERENCE, PREFERRED, RELEVANT, Bottleneck, Head
from reward_models.bottleneck.need import LearntNeed, learn_need
from reward_models.config import BottleneckConfig
from reward_models.kinds import Kind, PairKind, SegmentKind
from reward_models.pairs import Matching
from reward_models.training.logistic import CountedItems, RatedList, best_of, fit_answers, fit_counts, inner_losses

ANSWERS = COMPONENTS[2:]
SIGNS = dict(
    zip(
        COMPONENTS,
        (*(tuple(of.values()) for of in (RELEVANCE, FACTUALITY, COMPLETENESS)), (1,) * len(PREFERENCE)),
        strict=True,
    )
)
"""What each component's head may make of its features."""


@dataclass(frozen=True)
class FitSettings:
    """What heads are fitted with beside the configuration.

    Attributes:
        kinds: the taxonomy's kinds of reward model, by name; those of `COMPONENTS` are used.
        matching: of completeness labels.
        seed: of planted changes.
    """

    kinds: Mapping[str, Kind]
    matching: Matching = "original"
    seed: int = 0


@dataclass(frozen=True)
class Lessons:
    """What records teach the components, before any head reads it.

    Attributes:
        records: the records.
        sources: their questions, by id of the record.
        worse: by component of whole answers and id of the record, of each answer those that are worse than it.
        changes: what is planted.
        gold: whether gold answers stand above the answers to their questions.
    """

    records: Sequence[FeedbackRecord]
    sources: Mapping[str, Source]
    worse: Mapping[str, Mapping[str, Mapping[int, Sequence[int]]]]
    changes: Sequence[Change]
    gold: bool = False


def lessons_of(
    model: Bottleneck, records: Sequence[FeedbackRecord], config: BottleneckConfig, settings: FitSettings
) -> Lessons:
    """What records teach, with the changes of the configuration's families.

    Raises:
        ConfigError: the taxonomy lacks a component, or a planted family is none.
    """
    if missing := [name for name in COMPONENTS if name not in settings.kinds]:
        raise ConfigError(f"taxonomy: a bottleneck needs {', '.join(COMPONENTS)}; it has no {', '.join(missing)}")
    sources = {record.id: model.source(record.question, record.passages) for record in records}
    worse: dict[str, dict[str, dict[int, list[int]]]] = {name: {} for name in ANSWERS}
    for name, of in worse.items():
        kind = settings.kinds[name]
        assert isinstance(kind, PairKind)
        for pair in kind.pairs(records, model.segmenter, settings.matching).pairs:
            of.setdefault(pair.record.id, {}).setdefault(pair.better, []).append(pair.worse)
    return Lessons(records, sources, worse, planted_changes(records, config, settings.seed), config.gold)


def fit_bottleneck(
    model: Bottleneck, records: Sequence[FeedbackRecord], config: BottleneckConfig, settings: FitSettings
) -> LearntNeed:
    """Fit all heads of a model, in place: `fit_need`, then `fit_components` on what inner folds say is needed."""
    lessons = lessons_of(model, records, config, settings)
    learnt = fit_need(model, lessons, settings.kinds, config)
    fit_components(model, lessons, settings.kinds)
    model.hold({})
    return learnt


def fit_need(model: Bottleneck, lessons: Lessons, kinds: Mapping[str, Kind], config: BottleneckConfig) -> LearntNeed:
    """Fit, in place, what is needed: by gold answers, or by people's corrected answers too.

    It is the one by which inner folds meet people's marks of relevance with less loss. The model then holds what inner
    folds say of the questions that it was fitted to.

    Raises:
        DataError: no two records have a gold answer that says a sentence of its passages.
    """
    kind, losses = kinds[RELEVANT], []
    assert isinstance(kind, SegmentKind)
    ways = [learn_need(model, lessons.records, config, corrected) for corrected in (False, True)]
    for learnt in ways:
        learnt.give(model)
        items = list(_segment_items(model, kind, lessons))
        head = fit_signed(partial(_fit_segments, items), SIGNS[RELEVANT]) if items else None
        columns = [] if head is None else np.flatnonzero(head.weights).tolist()
        losses.append(min(inner_losses(items, columns, pairs=False)) if columns else math.inf)
    best = ways[int(np.argmin(losses))]
    best.give(model)
    return best


def fit_components(
    model: Bottleneck, lessons: Lessons, kinds: Mapping[str, Kind], without: str | None = None
) -> Bottleneck:
    """Fit the heads of all components, in place; the model knows already what is needed.

    Args:
        model: the model.
        lessons: of `lessons_of`.
        kinds: the taxonomy's kinds of reward model, by name.
        without: a family of changes that is not taught.

    Raises:
        DataError: nobody said anything of a component.
    """
    sources = lessons.sources
    planted = [change for change in lessons.changes if change.family != without]
    for name in COMPONENTS:
        kind = kinds[name]
        fit: Callable[[Sequence[int]], Head]
        if isinstance(kind, SegmentKind):
            marked = list(_segment_items(model, kind, lessons))
            fit, count = partial(_fit_segments, marked), len(marked)
        else:
            compared = _people_lists(model, name, lessons)
            count = len(compared)
            fit = partial(_fit_answers, [*compared, *_planted_lists(model, name, planted, sources, count)])
        if not count:
            raise DataError(f"no record says anything of {name} ({len(lessons.records)} read)")
        model.heads[name] = fit_signed(fit, SIGNS[name])
    scores = {
        name: [model.score(name, sources[one.id], text) for one in lessons.records for text in one.predictions]
        for name in ANSWERS
    }
    model.record = replace(model.record, moments={name: _moments(of) for name, of in scores.items()})
    return model


def fit_signed(fit: Callable[[Sequence[int]], Head], signs: Sequence[int]) -> Head:
    """A head without the features whose weight would have the other sign.

    Args:
        fit: a head that reads some columns alone.
        signs: of each feature, 1 or −1.
    """
    columns = list(range(len(signs)))
    while True:
        head = fit(columns)
        right = [i for i in columns if head.weights[i] * signs[i] >= 0]
        if right == columns:
            return head
        columns = right


def _fit_segments(items: Sequence[CountedItems], columns: Sequence[int]) -> Head:
    fitted = fit_counts(items, columns, pairs=False)
    return Head(fitted.weights, fitted.bias)


def _fit_answers(questions: Sequence[Sequence[RatedList]], columns: Sequence[int]) -> Head:
    return Head(fit_answers(questions, columns))


def _moments(scores: Sequence[float]) -> tuple[float, float]:
    spread = float(np.std(scores))
    return float(np.mean(scores)), spread if spread > 0 else 1.0


def _segment_items(model: Bottleneck, kind: SegmentKind, lessons: Lessons) -> Iterator[CountedItems]:
    for record in lessons.records:
        for answer in record.marked:
            labels = kind.labels(record, model.segmenter, answer)
            if labels.teaches:
                texts = [record.predictions[answer][start:end] for start, end in labels.spans]
                known = [i for i, label in enumerate(labels.labels) if label is not None]
                flags = np.array([float(bool(labels.labels[i])) for i in known])
                yield CountedItems(model.segment_rows(kind.name, lessons.sources[record.id], texts)[known], flags)


def _people_lists(model: Bottleneck, name: str, lessons: Lessons) -> list[list[RatedList]]:
    """Of each question, each answer above all those that are worse than it, and the gold answer where asked for."""
    made = []
    for record in lessons.records:
        worse = lessons.worse[name].get(record.id, {})
        gold = record.gold if lessons.gold and name == PREFERRED else None
        if worse or gold is not None:
            rows = [model.features(name, lessons.sources[record.id], text) for text in record.predictions]
            made.append([best_of(rows[better], [rows[i] for i in under]) for better, under in worse.items()])
            if gold is not None:
                made[-1].append(best_of(model.features(name, lessons.sources[record.id], gold), rows))
    return made


def planted_changes(records: Sequence[FeedbackRecord], config: BottleneckConfig, seed: int) -> list[Change]:
    """The changes that are planted in the answers of records with a gold answer.

    Raises:
        ConfigError: a family is none.
    """
    families = list(dict.fromkeys(maker.family for maker in BUILT_IN))
    if unknown := [family for family in config.planted if family not in families]:
        raise ConfigError(f"reward_model.planted: expected some of {', '.join(families)}, got {', '.join(unknown)}")
    questions = [item_of(one).record for one in records if one.gold is not None]
    makers: list[MakesChanges] = [maker for maker in BUILT_IN if maker.family in config.planted]
    return run_changes(questions, makers, seed, config.changes) if makers else []


def _planted_lists(
    model: Bottleneck, name: str, changes: Sequence[Change], sources: Mapping[str, Source], people: int
) -> list[list[RatedList]]:
    """Of each question, each answer above what was made worse of it; all questions together count as much as people's.

    An answer is less complete where that is known of a change, and less preferred where anything must fall.
    """
    worse: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for change in changes:
        known = [one for one in change.expectations if one.direction != "stay"]
        if any(name != COMPLETE or one.role == COMPLETE for one in known):
            worse[change.record][change.base].append(change.changed)
    made = []
    for record, of in worse.items():
        read, weight = partial(model.features, name, sources[record]), people / len(worse) / len(of)
        made.append([best_of(read(base), list(map(read, changed)), weight) for base, changed in of.items()])
    return made
