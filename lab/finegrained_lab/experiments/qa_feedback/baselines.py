"""What counting words alone finds: judges of the same labels without any pretrained weight.

Ridge logistic regressions, the ridge chosen inside the training records by question; errors and clean segments weigh
the same in all, as in the models' training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.experiments.qa_feedback.scores import MAJORITY
from finegrained_rlhf.feedback.labels import HAS_ERROR
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.segmentation import Segmenter
from reward_models.encoders.counts import count_names, word_counts
from reward_models.kinds import Kind, PairKind, SegmentKind
from reward_models.parts import answer_parts, factuality_parts
from reward_models.training.logistic import CountedItems, fit_counts
from reward_models.trust.items import JudgedRecord, judged_segments
from reward_models.trust.judging import MarkedText

BASELINES: Mapping[str, tuple[str, ...] | None] = {
    MAJORITY: (),
    "length": ("place", "last", "segments", "length", "words", "variety"),
    "overlap": ("asked", "said", "answered", "sentence", "passages", "bigrams", "numbers"),
    "counts": None,
}
"""Of each baseline, which counts it reads; None reads all."""


@dataclass(frozen=True)
class Counted:
    """The labelled items of one record.

    Attributes:
        record: the record.
        items: their counts and labels, what a judge learns from.
        rows: counts of all that is judged, [items, counts]: also of segments that have no label.
        text: the judged answer with its marks; None for pairs.
    """

    record: FeedbackRecord
    items: CountedItems
    rows: NDArray[np.float64]
    text: MarkedText | None = None


def counted(kind: Kind, records: Sequence[FeedbackRecord], segmenter: Segmenter) -> list[Counted]:
    """The items of records that have any; passages are counted for every kind, also for one whose model sees none."""
    seeing = replace(kind, reads_passages=True)
    if isinstance(kind, PairKind):
        groups: dict[str, list[NDArray[np.float64]]] = {}
        for pair in kind.pairs(records, segmenter).pairs:
            texts = (pair.better_text, pair.worse_text)
            inputs = [answer_parts(pair.record.question, pair.record.passages, text) for text in texts]
            better, worse = (np.array(word_counts(seeing, item)[0]) for item in inputs)
            groups.setdefault(pair.record.id, []).append(better - worse)
        having = [record for record in records if record.id in groups]
        counts = {record.id: np.array(groups[record.id]) for record in having}
        return [Counted(r, CountedItems(counts[r.id], np.ones(len(counts[r.id]))), counts[r.id]) for r in having]
    assert isinstance(kind, SegmentKind)
    items = []
    for record in records:
        text, labels = record.predictions[0], kind.labels(record, segmenter)
        if labels.teaches:
            known = [i for i, label in enumerate(labels.labels) if label is not None]
            parts = factuality_parts(record.question, record.passages, [text[a:b] for a, b in labels.spans])
            rows = np.array(word_counts(seeing, parts))
            truth = np.array([float(labels.labels[i] == HAS_ERROR) for i in known])
            marks = tuple(dict.fromkeys((mark.start, mark.end) for mark in kind.marks(record)))
            items.append(Counted(record, CountedItems(rows[known], truth), rows, MarkedText(text, labels, marks)))
    return items


def baseline(name: str, kind: Kind, train: Sequence[Counted], test: Sequence[Counted]) -> list[JudgedRecord]:
    """What a baseline, fitted on some records, says of others.

    `majority` says of every segment what most segments are, with their share as probability; pairs have none.

    Raises:
        ValueError: the majority of pairs.
    """
    pairs = isinstance(kind, PairKind)
    names, wanted = count_names(replace(kind, reads_passages=True)), BASELINES[name]
    columns = tuple(i for i, of in enumerate(names) if wanted is None or of in wanted)
    if name == MAJORITY:
        if pairs:
            raise ValueError("of two answers neither is the more frequent one")
        labels = np.concatenate([one.items.labels for one in train])
        errors = np.clip(labels.sum(), 0.5, len(labels) - 0.5)  # half an item where all have one label
        logit = float(np.log(errors / (len(labels) - errors)))
        return [judged(one, np.full(len(one.rows), logit)) for one in test]
    judge = fit_counts([one.items for one in train], columns, pairs)
    return [judged(one, judge.logits(one.rows)) for one in test]


def judged(item: Counted, logits: NDArray[np.float64]) -> JudgedRecord:
    """Log odds, one a row of `Counted.rows`, as a judged record."""
    if item.text is None:
        return JudgedRecord(item.record.id, gaps=tuple(logits.tolist()))
    probabilities = (1 / (1 + np.exp(-logits))).tolist()
    return judged_segments(item.record.id, item.text, probabilities, (logits > 0).tolist())
