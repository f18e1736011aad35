"""How far a trained reward model can be trusted: against the labels and marks of people on feedback it did not learn.

Three views: each labelled segment (or ordered pair of answers), each span that people marked, and the probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch

from finegrained_rlhf.metrics.detection import Confusion, harmonic_mean, share
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import Span
from reward_models.data.examples import RewardExample
from reward_models.encoders.models import RewardModel
from reward_models.trust.calibration import Calibration, calibration
from reward_models.trust.judging import Judgements, MarkedText, SegmentVerdicts, judge_examples

MIN_COVERED = 0.5
"""A span counts as found, and a claim as right, when at least this share of its characters is covered."""


@dataclass(frozen=True)
class SpanScores:
    """Agreement on spans.

    A claimed span is a run of neighbouring segments that the model says have an error. A marked span is found when at
    least half of its characters lie in claimed spans. A claimed span is right when at least half of its characters lie
    in segments that a marked span touches: the model can claim nothing finer than a segment, so marks are widened to
    segments before they are held against a claim, and a model that predicts every label has precision and recall 1.
    White space never counts, and segments without a label are in no claim.

    Each side is measured against its own length, as in Da San Martino et al. 2019 (Fine-Grained Analysis of Propaganda
    in News Articles, section 5), and counted as a match from one half on, as in DeYoung et al. 2020 (ERASER, section
    4), because the two sides are not cut alike: an intersection over union would punish a segment for being longer
    than the words somebody marked in it.

    Attributes:
        precision: right claimed spans / claimed; 0 where nothing is claimed.
        recall: found marked spans / annotated; 0 where nothing is marked.
        f1: their harmonic mean.
        annotated: marked spans.
        claimed: claimed spans.
    """

    precision: float
    recall: float
    f1: float
    annotated: int
    claimed: int


@dataclass(frozen=True)
class TrustReport:
    """What `trust.json` holds.

    Attributes:
        reward_model: kind of model.
        examples: records with a label (or an ordered pair).
        items: labelled segments, or ordered pairs.
        accuracy: share of items judged as people did.
        calibration: of the probability of "has error", or of the predicted winner (0.5 to 1).
        confusion: of the class "has error"; None for pairs.
        span: agreement on spans; None for pairs.
    """

    reward_model: str
    examples: int
    items: int
    accuracy: float
    calibration: Calibration
    confusion: Confusion | None = None
    span: SpanScores | None = None

    def to_json(self, data: str) -> dict[str, Any]:
        """The report on the feedback file `data` as plain JSON values; ratios of nothing are 0."""
        values: dict[str, Any] = {
            "reward_model": self.reward_model,
            "data": data,
            "examples": self.examples,
            "items": self.items,
            "accuracy": self.accuracy,
        }
        if self.confusion is not None and self.span is not None:
            values["confusion"] = asdict(self.confusion)
            ratios = {"precision": self.confusion.precision, "recall": self.confusion.recall, "f1": self.confusion.f1}
            values |= {name: ratio or 0.0 for name, ratio in ratios.items()}
            values["span"] = asdict(self.span)
        curve = {"ece": self.calibration.ece, "bins": [asdict(row) for row in self.calibration.bins]}
        return {**values, "calibration": curve}


def trust_of(
    kind: str, examples: Sequence[RewardExample], texts: Sequence[MarkedText] | None, judgements: Judgements
) -> TrustReport:
    """Hold judgements of `examples` against their labels; `texts` as in `measure_trust`.

    Raises:
        ValueError: texts of other records.
    """
    if texts is None:
        return pair_trust(kind, [example.pairs for example in examples], judgements.scores)
    if [example.segment_labels for example in examples] != [text.segments.labels for text in texts]:
        raise ValueError("the texts are not those of the examples")
    return segment_trust(kind, texts, judgements.verdicts)


def measure_trust(
    model: RewardModel,
    examples: Sequence[RewardExample],
    texts: Sequence[MarkedText] | None,
    batch_size: int,
    processes: Processes,
) -> TrustReport:
    """Hold a model's judgement against the labels of `examples`. A collective call: processes share the work.

    Args:
        model: in evaluation mode.
        examples: labelled examples, at least one.
        texts: `marked_texts` of the records that the examples were made of; None for a pair model.
        batch_size: inputs in one forward pass.
        processes: of the run; every one of them gets the report.

    Raises:
        ValueError: no example, or texts of other records.
    """
    if not examples or (texts is None) == model.record.labels_segments:
        raise ValueError("trust needs examples, and texts for a segment model")
    return trust_of(model.record.kind, examples, texts, judge_examples(model, examples, batch_size, processes))


def segment_trust(kind: str, texts: Sequence[MarkedText], verdicts: Sequence[SegmentVerdicts]) -> TrustReport:
    """The report of a segment model; segments without a label are left out."""
    rows = [
        (bool(label), claim, probability)
        for text, verdict in zip(texts, verdicts, strict=True)
        for label, claim, probability in zip(text.segments.labels, verdict.claims, verdict.probabilities, strict=True)
        if label is not None
    ]
    truth, claims, probabilities = zip(*rows, strict=True)
    confusion = Confusion.of(truth, claims)
    return TrustReport(
        reward_model=kind,
        examples=len(texts),
        items=confusion.items,
        accuracy=confusion.accuracy or 0.0,
        calibration=calibration(probabilities, truth),
        confusion=confusion,
        span=span_scores(texts, [verdict.claims for verdict in verdicts]),
    )


def pair_trust(kind: str, pairs: Sequence[Sequence[tuple[int, int]]], scores: Sequence[Sequence[float]]) -> TrustReport:
    """The report of a pair model.

    P(a beats b) = σ(R_a − R_b) (Bradley and Terry 1952), so the predicted winner, the one with the higher score, wins
    with probability σ(|R_a − R_b|). A pair with equal scores counts as judged wrongly, as in training.

    Args:
        kind: of the model.
        pairs: of each record, (better, worse) indices into its scores.
        scores: of each record, the raw scores of its answers.
    """
    gaps = [row[better] - row[worse] for row, of in zip(scores, pairs, strict=True) for better, worse in of]
    gap = torch.tensor(gaps, dtype=torch.float64)
    right = (gap > 0).tolist()
    return TrustReport(
        reward_model=kind,
        examples=len(pairs),
        items=len(right),
        accuracy=sum(right) / len(right),
        calibration=calibration(gap.abs().sigmoid().tolist(), right, low=0.5),
    )


def span_scores(texts: Sequence[MarkedText], claims: Sequence[Sequence[bool]]) -> SpanScores:
    """Agreement on spans; `claims` has one flag a segment of each text."""
    covered_spans: list[bool] = []
    right: list[bool] = []
    for text, flags in zip(texts, claims, strict=True):
        spans, labels = text.segments.spans, text.segments.labels
        runs = claimed_runs(labels, flags)
        claimed = [spans[i] for run in runs for i in run]
        wrong = [span for span, label in zip(spans, labels, strict=True) if label]
        covered_spans += [covered(text.text, [span], claimed) >= MIN_COVERED for span in text.marked]
        right += [covered(text.text, [spans[i] for i in run], wrong) >= MIN_COVERED for run in runs]
    precision, recall = share(sum(right), len(right)) or 0.0, share(sum(covered_spans), len(covered_spans)) or 0.0
    return SpanScores(precision, recall, harmonic_mean(precision, recall), len(covered_spans), len(right))


def claimed_runs(labels: Sequence[int | None], claims: Sequence[bool]) -> list[list[int]]:
    """Indices of the claimed segments, in runs of neighbours; a segment without a label ends a run."""
    flags = [claim and label is not None for label, claim in zip(labels, claims, strict=True)]
    return [[i for i, _ in run] for claimed, run in groupby(enumerate(flags), key=lambda item: item[1]) if claimed]


def covered(text: str, spans: Iterable[Span], by: Iterable[Span]) -> float:
    """Share of the characters in `spans` of `text`, white space aside, that also lie in a span of `by`."""
    own, other = _characters(text, spans), _characters(text, by)
    return len(own & other) / len(own)


def _characters(text: str, spans: Iterable[Span]) -> set[int]:
    return {i for start, end in spans for i in range(start, end) if not text[i].isspace()}
