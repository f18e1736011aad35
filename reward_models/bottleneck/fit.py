"""Fitting the bottleneck's heads: what is needed, then each component on what people said, and on planted changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.labels import HAS_ERROR
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.rewards.stress.changes import TOTAL, Change, MakesChanges, run_changes
from finegrained_rlhf.rewards.stress.makers import BUILT_IN
from finegrained_rlhf.rewards.stress.reading import item_of
from finegrained_rlhf.text.segmentation import Span
from reward_models.bottleneck.config import BottleneckConfig
from reward_models.bottleneck.features import COMPLETENESS, FACTUALITY, NEED, RELEVANCE, Array, Source, stems
from reward_models.bottleneck.model import COMPLETE, COMPONENTS, PREFERENCE, RELEVANT, Bottleneck, Head
from reward_models.kinds import Kind, PairKind, SegmentKind
from reward_models.labels.pairs import Matching
from reward_models.training.logistic import CountedItems, fit_counts

SEGMENTS, ANSWERS = COMPONENTS[:2], COMPONENTS[2:]
SIGNS = dict(
    zip(
        COMPONENTS,
        (*(tuple(of.values()) for of in (RELEVANCE, FACTUALITY, COMPLETENESS)), (1,) * len(PREFERENCE)),
        strict=True,
    )
)
"""What each component's head may make of its features."""
_EVEN = 1e-6


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


def fit_bottleneck(
    model: Bottleneck, records: Sequence[FeedbackRecord], config: BottleneckConfig, settings: FitSettings
) -> Bottleneck:
    """Fit all heads of a model, in place: `fit_need`, then `fit_components`."""
    fit_need(model, records, config)
    return fit_components(model, records, config, settings)


def fit_components(
    model: Bottleneck, records: Sequence[FeedbackRecord], config: BottleneckConfig, settings: FitSettings
) -> Bottleneck:
    """Fit the heads of all components, in place; the model knows already what is needed.

    Raises:
        DataError: nobody said anything of a component.
        ConfigError: the taxonomy lacks a component, or a planted family is none.
    """
    if missing := [name for name in COMPONENTS if name not in settings.kinds]:
        raise ConfigError(f"taxonomy: a bottleneck needs {', '.join(COMPONENTS)}; it has no {', '.join(missing)}")
    sources = {record.id: model.source(record.question, record.passages) for record in records}
    planted = planted_changes(records, config, settings.seed)
    for name in COMPONENTS:
        kind = settings.kinds[name]
        if isinstance(kind, SegmentKind):
            people = list(_segment_items(model, kind, records, sources))
        else:
            assert isinstance(kind, PairKind)
            people = list(_pair_items(model, kind, records, sources, settings.matching))
        if not people:
            raise DataError(f"no record says anything of {name} ({len(records)} read)")
        items = people + _weighted(_planted_items(model, name, planted, sources), people, config.planted_weight)
        signs = SIGNS[name] if config.copied or name != RELEVANT else (0, *SIGNS[name][1:])
        model.heads[name] = fit_signed(items, signs, name in ANSWERS)
    model.record = replace(
        model.record,
        moments={
            name: _moments([model.score(name, sources[one.id], text) for one in records for text in one.predictions])
            for name in ANSWERS
        },
    )
    return model


def fit_signed(items: Sequence[CountedItems], signs: Sequence[int], pairs: bool) -> Head:
    """A ridge logistic regression (`fit_counts`) without the features whose weight would have the other sign.

    Args:
        items: to fit on.
        signs: of each feature, 1 or −1; 0 leaves it out.
        pairs: fit differences without an intercept.
    """
    columns = [i for i, sign in enumerate(signs) if sign]
    while True:
        fitted = fit_counts(items, columns, pairs)
        right = [i for i in columns if fitted.weights[i] * signs[i] >= 0]
        if right == columns:
            return Head(fitted.weights, fitted.bias)
        columns = right


def _moments(scores: Sequence[float]) -> tuple[float, float]:
    spread = float(np.std(scores))
    return float(np.mean(scores)), spread if spread > 0 else 1.0


def gold_shares(source: Source, gold: str, pieces: Sequence[str]) -> Array:
    """How far a gold answer says each sentence, [N]: the mean of what it has of the sentence, and the sentence of it.

    Args:
        source: the question.
        gold: the answer.
        pieces: its sub-sentences.
    """
    words_of = [frozenset(stems(piece)) - source.asked for piece in pieces]
    return source.shares(frozenset(stems(gold)) - source.asked, [words for words in words_of if len(words) > 1])


def fit_need(model: Bottleneck, records: Sequence[FeedbackRecord], config: BottleneckConfig) -> None:
    """Fit, in place, what is needed: ridge regression of whether gold answers say a sentence, on standardised features.

    Raises:
        DataError: no record has a gold answer and passages.
    """
    rows, targets = [], []
    for record in records:
        source = model.source(record.question, record.passages)
        if record.gold is not None and source.sentences:
            pieces = [record.gold[start:end] for start, end in model.segmenter.sub_sentences(record.gold)]
            rows.append(source.need_rows)
            targets.append(gold_shares(source, record.gold, pieces) > config.needed)
    if not rows:
        raise DataError("no record has a gold answer and passages, which tell what a question needs")
    x, y = np.concatenate(rows), np.concatenate(targets).astype(float)
    mean, spread = x.mean(0), x.std(0)
    spread[spread < _EVEN] = 1.0
    x = (x - mean) / spread
    penalty = np.full(x.shape[1], config.vector_ridge)
    penalty[:NEED] = config.ridge
    weights = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ (y - y.mean())) / spread
    model.set_need(Head(weights, float(y.mean() - mean @ weights)))


def _segment_items(
    model: Bottleneck, kind: SegmentKind, records: Sequence[FeedbackRecord], sources: Mapping[str, Source]
) -> Iterator[CountedItems]:
    for record in records:
        for answer in record.marked:
            labels = kind.labels(record, model.segmenter, answer)
            if labels.teaches:
                texts = [record.predictions[answer][start:end] for start, end in labels.spans]
                known = [i for i, label in enumerate(labels.labels) if label is not None]
                flags = np.array([float(labels.labels[i] == HAS_ERROR) for i in known])
                yield CountedItems(model.segment_rows(kind.name, sources[record.id], texts)[known], flags)


def _pair_items(
    model: Bottleneck,
    kind: PairKind,
    records: Sequence[FeedbackRecord],
    sources: Mapping[str, Source],
    matching: Matching,
) -> Iterator[CountedItems]:
    for record in records:
        pairs = kind.pairs([record], model.segmenter, matching).pairs
        if pairs:
            rows = [model.features(kind.name, sources[record.id], text) for text in record.predictions]
            yield CountedItems(np.array([rows[pair.better] - rows[pair.worse] for pair in pairs]), np.ones(len(pairs)))


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


def _planted_items(
    model: Bottleneck, name: str, changes: Sequence[Change], sources: Mapping[str, Source]
) -> list[CountedItems]:
    """What planted changes teach a component: what must fall or not rise is worse than what it was made of."""
    rows: dict[str, list[Array]] = defaultdict(list)
    labels: dict[str, list[float]] = defaultdict(list)
    for change in changes:
        source = sources[change.record]
        for one in change.expectations:
            if one.direction == "stay":
                continue
            if name in ANSWERS and (one.role == COMPLETE or (one.role == TOTAL and name != COMPLETE)):
                better, worse = (model.features(name, source, text) for text in (change.base, change.changed))
                rows[change.record].append(better - worse)
                labels[change.record].append(1.0)
            elif name in SEGMENTS and one.role == name:
                for text, place, label in ((change.base, one.before, 0.0), (change.changed, one.after, 1.0)):
                    spans = model.cut(name, text)
                    made = model.segment_rows(name, source, [text[start:end] for start, end in spans])
                    there = [i for i, span in enumerate(spans) if place is None or _within(span, place)]
                    rows[change.record] += list(made[there])
                    labels[change.record] += [label] * len(there)
    return [CountedItems(np.array(rows[id]), np.array(labels[id])) for id in rows if rows[id]]


def _within(span: Span, place: Span) -> bool:
    return 2 * (min(span[1], place[1]) - max(span[0], place[0])) >= span[1] - span[0]


def _weighted(planted: Sequence[CountedItems], people: Sequence[CountedItems], weight: float) -> list[CountedItems]:
    """Planted items of which all count `weight` times what people's do, and those of each question the same."""
    total = sum(len(item.labels) for item in people) * weight / max(1, len(planted))
    return [replace(item, weight=total / len(item.labels)) for item in planted] if weight else []
