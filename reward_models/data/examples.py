"""Labelled inputs of reward models, and which of them a training step uses.

Each distinct answer of a question is encoded once, however many pairs it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.labels import SegmentLabels
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.segmentation import Segmenter, deciding_character, look_ahead_of
from reward_models.encoders.inputs import EncodedInput, RewardInputEncoder
from reward_models.kinds import Kind, PairKind, SegmentKind
from reward_models.pairs import AnswerPair, Matching

_BATCHES_SORTED_TOGETHER = 16


@dataclass(frozen=True)
class RewardExample:
    """What one record teaches a reward model.

    Attributes:
        inputs: of a segment model the answer, or its prefixes; of a pair model the distinct answers that are compared.
        labels: of a segment model, one a separator of all inputs: 1 has an error, 0 has none, None teaches nothing.
        weights: what each label counts in training; empty where each counts 1.
        judged: of an answer read in prefixes, the separator of all inputs at which each of its segments is judged.
        pairs: of a pair model, (better, worse) indices into `inputs`.
        record: id of the record.
    """

    inputs: tuple[EncodedInput, ...]
    labels: tuple[int | None, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    record: str = ""
    weights: tuple[float, ...] = ()
    judged: tuple[int, ...] = ()

    @property
    def items(self) -> int:
        """What the batch size counts: pairs, or 1 for a record with segment labels."""
        return len(self.pairs) or 1

    @property
    def segment_labels(self) -> tuple[int | None, ...]:
        """The labels of the answer's segments, each at the separator where it is judged."""
        return tuple(self.labels[place] for place in self.judged) if self.judged else self.labels

    @property
    def length(self) -> int:
        """Tokens of the longest input."""
        return max(len(item.ids) for item in self.inputs)


@dataclass(frozen=True)
class LabelSettings:
    """How labels are made.

    Attributes:
        kind: of reward model.
        matching: of completeness labels.
        prefixes: whether each segment is read in the prefix of the answer that decides where it ends.
    """

    kind: Kind
    matching: Matching = "original"
    prefixes: bool = False


def deciding_prefix(kind: SegmentKind, segmenter: Segmenter, text: str, end: int) -> str:
    """The beginning of an answer that decides whether a segment ends at `end`, as `reading=prefix` scores it.

    The whole answer where it has no more words than the segmenter looks ahead, or the segmenter declares no number.
    """
    density = kind.density
    ahead = look_ahead_of(segmenter, density) if density == "sentence" or density == "sub_sentence" else None
    place = None if ahead is None else deciding_character(text, end, ahead)
    return text if place is None else text[:place].rstrip()


def _read_in_prefixes(
    kind: SegmentKind,
    record: FeedbackRecord,
    text: str,
    labels: SegmentLabels,
    encoder: RewardInputEncoder,
    segmenter: Segmenter,
) -> RewardExample:
    """An answer as the prefixes that decide its segments; a separator has a label where its segment is decided."""
    parts, judged, first = [], [], 0
    for prefix, decided in groupby(labels.spans, lambda span: deciding_prefix(kind, segmenter, text, span[1])):
        cut = kind.cut(prefix, segmenter)
        try:
            judged += [first + cut.index(span) for span in decided]
        except ValueError:
            raise ConfigError(f"the segmenter looks further ahead than it declares: it cuts {prefix!r} anew") from None
        parts.append(kind.parts(record.question, record.passages, [prefix[a:b] for a, b in cut]))
        first += len(cut)
    known = dict(zip(judged, labels.labels, strict=True))
    shares = dict(zip(judged, labels.agreement, strict=False))
    weights = tuple(shares.get(i, 1.0) for i in range(first)) if shares else ()
    inputs = tuple(encoder.encode(parts))
    return RewardExample(inputs, tuple(map(known.get, range(first))), (), record.id, weights, tuple(judged))


def _segment_examples(
    kind: SegmentKind,
    records: Sequence[FeedbackRecord],
    settings: LabelSettings,
    encoder: RewardInputEncoder,
    segmenter: Segmenter,
) -> list[RewardExample]:
    labelled = [
        (record, answer, kind.labels(record, segmenter, answer)) for record in records for answer in record.marked
    ]
    kept = [(record, record.predictions[answer], labels) for record, answer, labels in labelled if labels.teaches]
    if settings.prefixes:
        return [_read_in_prefixes(kind, record, text, labels, encoder, segmenter) for record, text, labels in kept]
    parts = [
        kind.parts(record.question, record.passages, [text[a:b] for a, b in labels.spans])
        for record, text, labels in kept
    ]
    return [
        RewardExample((item,), labels.labels, record=record.id, weights=labels.agreement)
        for item, (record, _, labels) in zip(encoder.encode(parts), kept, strict=True)
    ]


def _pair_examples(
    kind: PairKind,
    records: Sequence[FeedbackRecord],
    settings: LabelSettings,
    encoder: RewardInputEncoder,
    segmenter: Segmenter,
) -> list[RewardExample]:
    groups: dict[int, list[AnswerPair]] = {}
    for pair in kind.pairs(records, segmenter, settings.matching).pairs:
        groups.setdefault(id(pair.record), []).append(pair)
    return [_pair_example(kind, pairs, encoder) for pairs in groups.values()]


def _pair_example(kind: PairKind, pairs: Sequence[AnswerPair], encoder: RewardInputEncoder) -> RewardExample:
    record = pairs[0].record
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.better_text, pair.worse_text)))
    inputs = encoder.encode([kind.parts(record.question, record.passages, text) for text in texts])
    where = {text: i for i, text in enumerate(texts)}
    return RewardExample(
        tuple(inputs), (), tuple((where[pair.better_text], where[pair.worse_text]) for pair in pairs), record.id
    )


def build_examples(
    records: Sequence[FeedbackRecord], settings: LabelSettings, encoder: RewardInputEncoder, segmenter: Segmenter
) -> list[RewardExample]:
    """Labelled inputs of all records that teach anything, in order.

    Raises:
        DataError: an input does not fit the model even without its passages.
    """
    kind = settings.kind
    if isinstance(kind, SegmentKind):
        return _segment_examples(kind, records, settings, encoder, segmenter)
    assert isinstance(kind, PairKind)
    return _pair_examples(kind, records, settings, encoder, segmenter)


def output_inputs(kind: PairKind, records: Sequence[FeedbackRecord], encoder: RewardInputEncoder) -> list[EncodedInput]:
    """The inputs of every answer of the records, each answer as often as it occurs (for mean and std)."""
    return encoder.encode(
        [kind.parts(record.question, record.passages, text) for record in records for text in record.predictions]
    )


def hold_out(
    records: Sequence[FeedbackRecord], fraction: float, seed: int
) -> tuple[list[FeedbackRecord], list[FeedbackRecord]]:
    """Split records into (training, held out) by a seeded permutation; at least one record is held out.

    Raises:
        DataError: fewer than two records.
    """
    if len(records) < 2:
        raise DataError(f"{len(records)} record: too few to hold some out for validation; set validation_data")
    order = np.random.default_rng(stable_hash(seed, "held out")).permutation(len(records)).tolist()
    count = min(len(records) - 1, max(1, round(fraction * len(records))))
    held = set(order[:count])
    return [record for i, record in enumerate(records) if i not in held], [records[i] for i in sorted(held)]


def shuffled(examples: Sequence[RewardExample], seed: int) -> list[RewardExample]:
    """The same inputs with labels that say nothing of them, for a control that must fail.

    The labels of all segments are dealt out anew among the segments that have one; every pair is turned round or not by
    a coin of its own.
    """
    generator = np.random.default_rng(stable_hash(seed, "shuffled labels"))
    labels = [label for example in examples for label in example.labels if label is not None]
    dealt = iter([labels[i] for i in generator.permutation(len(labels)).tolist()])
    return [
        replace(
            example,
            labels=tuple(None if label is None else next(dealt) for label in example.labels),
            pairs=tuple(pair if generator.random() < 0.5 else pair[::-1] for pair in example.pairs),
        )
        for example in examples
    ]


def weighted(examples: Sequence[RewardExample], by_agreement: bool) -> list[RewardExample]:
    """The same examples, whose labels count 1 each, or as far as annotators agree with them: 1 on average.

    Args:
        examples: with the annotators' agreement as `weights`, where feedback names them; other labels have 1.
        by_agreement: whether it counts.
    """
    if not by_agreement or not any(example.weights for example in examples):
        return [replace(example, weights=()) for example in examples]
    filled = [example.weights or (1.0,) * len(example.labels) for example in examples]
    known = [
        weight
        for example, weights in zip(examples, filled, strict=True)
        for label, weight in zip(example.labels, weights, strict=True)
        if label is not None
    ]
    mean = sum(known) / len(known) if known else 1.0
    if mean <= 0:
        raise DataError("no annotator agrees with any label")
    return [
        replace(example, weights=tuple(weight / mean for weight in weights))
        for example, weights in zip(examples, filled, strict=True)
    ]


class BatchPlan:
    """Batches of examples as a function of (seed, step): epochs of shuffled batches of similar lengths.

    Args:
        examples: at least one.
        batch_size: items (records with labels, or pairs) a batch at most, over all processes; a single example with
            more of them is a batch of its own.
        seed: of the run.
    """

    def __init__(self, examples: Sequence[RewardExample], batch_size: int, seed: int) -> None:
        self._examples, self._batch_size, self._seed = examples, batch_size, seed
        self._batches: list[list[int]] = []
        self._epoch_ends: list[int] = []

    def batch(self, step: int) -> list[RewardExample]:
        """The examples of training step `step` (from 1)."""
        while len(self._batches) < step:
            self._add_epoch()
        return [self._examples[i] for i in self._batches[step - 1]]

    def steps(self, epochs: int) -> int:
        """Training steps that so many epochs take."""
        while len(self._epoch_ends) < epochs:
            self._add_epoch()
        return self._epoch_ends[epochs - 1]

    def _add_epoch(self) -> None:
        generator = np.random.default_rng(stable_hash(self._seed, "batches", len(self._epoch_ends)))
        order = generator.permutation(len(self._examples)).tolist()
        window = self._batch_size * _BATCHES_SORTED_TOGETHER
        batches: list[list[int]] = []
        for start in range(0, len(order), window):
            near = sorted(order[start : start + window], key=lambda i: self._examples[i].length)
            batches += self._pack(near)
        self._batches += [batches[i] for i in generator.permutation(len(batches)).tolist()]
        self._epoch_ends.append(len(self._batches))

    def _pack(self, order: Sequence[int]) -> list[list[int]]:
        batches: list[list[int]] = []
        room = 0
        for i in order:
            items = self._examples[i].items
            if not batches or items > room:
                batches.append([])
                room = self._batch_size
            batches[-1].append(i)
            room -= items
        return batches
