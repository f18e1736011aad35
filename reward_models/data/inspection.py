"""What a feedback file holds: its annotations, the labels they give each reward model, and how they agree.

Trains nothing and writes nothing but the report on standard output.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.feedback.labels import SegmentLabels
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter
from reward_models.completeness import scores_to_preferences
from reward_models.kinds import PREFERENCE, PairKind, SegmentKind, kinds_of
from reward_models.pairs import AnswerPair, CompletenessConfig, Matching, PairSet, ordered_pairs

ReportFormat = Literal["table", "json"]


@dataclass(frozen=True)
class LabelCounts:
    """Segment labels of one token-level reward model: examples with any label, segments with and without an error."""

    examples: int
    has_error: int
    no_error: int


@dataclass(frozen=True)
class PairCounts:
    """Comparisons of one pairwise reward model: examples compared, won by the first, by the second, ties."""

    examples: int
    first: int
    second: int
    ties: int


@dataclass(frozen=True)
class PairAgreement:
    """How often another order of the answers agrees with the human preferences.

    Attributes:
        compared: pairs that both order (no tie in either).
        agree: those that both order the same way.
        share: agree / compared; None when nothing was compared.
    """

    compared: int
    agree: int
    share: float | None


@dataclass(frozen=True)
class FeedbackReport:
    """The whole report.

    Attributes:
        examples: records in the file.
        labels: of each kind of segment model, by name.
        comparisons: of each kind of pair model, by name.
        span_types: marked spans by error type.
        missing_info_types: missing-information marks by type.
        agreement: with the human preferences, of the completeness order (`completeness`) and of the order by length
            in words (`longer_answer`, a bias to know).
    """

    examples: int
    labels: Mapping[str, LabelCounts]
    comparisons: Mapping[str, PairCounts]
    span_types: Mapping[str, int]
    missing_info_types: Mapping[str, int]
    agreement: Mapping[str, PairAgreement]

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values, a key for each kind of reward model first."""
        values = asdict(self)
        examples = values.pop("examples")
        return {**values.pop("labels"), **values.pop("comparisons"), **values, "examples": examples}


def count_labels(labels: Sequence[SegmentLabels]) -> LabelCounts:
    """Totals over a file; examples without any label are not counted."""
    return LabelCounts(
        sum(row.teaches for row in labels), sum(row.has_error for row in labels), sum(row.no_error for row in labels)
    )


def count_pairs(pairs: PairSet) -> PairCounts:
    """The numbers of a pair set."""
    return PairCounts(pairs.examples, pairs.first, pairs.second, pairs.ties)


def agreement_with(human: Sequence[AnswerPair], other: Sequence[AnswerPair]) -> PairAgreement:
    """Agreement of two sets of ordered pairs of the same records, over the pairs that both order."""
    winners = {(p.record.id, frozenset((p.better, p.worse))): p.better for p in human}
    same = [
        winners[key] == pair.better
        for pair in other
        if (key := (pair.record.id, frozenset((pair.better, pair.worse)))) in winners
    ]
    return PairAgreement(len(same), sum(same), round(sum(same) / len(same), 4) if same else None)


def _longer_pairs(records: Sequence[FeedbackRecord]) -> list[AnswerPair]:
    return [
        pair
        for record in records
        for pair in ordered_pairs(record, scores_to_preferences([len(text.split()) for text in record.predictions]))
    ]


def _type_counts(names: Sequence[str], occurring: Sequence[str]) -> dict[str, int]:
    counts = Counter(occurring)
    return {name: counts[name] for name in names}


def inspect_feedback(
    records: Sequence[FeedbackRecord],
    segmenter: Segmenter,
    matching: Matching = "original",
    taxonomy: Taxonomy = QA_FEEDBACK,
) -> FeedbackReport:
    """Count everything that a feedback file teaches.

    Args:
        records: the file's records.
        segmenter: cuts the answers.
        matching: how completeness maps sub-sentences to passage sentences.
        taxonomy: what was marked.
    """
    kinds = kinds_of(taxonomy).values()
    pairs = {kind.name: kind.pairs(records, segmenter, matching) for kind in kinds if isinstance(kind, PairKind)}
    human = pairs[PREFERENCE.name].pairs if PREFERENCE.name in pairs else ()
    orders = {name: kind_pairs.pairs for name, kind_pairs in pairs.items() if name != PREFERENCE.name}
    orders["longer_answer"] = tuple(_longer_pairs(records))
    marked = [feedback for record in records for feedback in record.marked.values()]
    return FeedbackReport(
        examples=len(records),
        labels={
            kind.name: count_labels([kind.labels(r, segmenter, answer) for r in records for answer in r.marked])
            for kind in kinds
            if isinstance(kind, SegmentKind)
        },
        comparisons={name: count_pairs(made) for name, made in pairs.items()},
        span_types=_type_counts(tuple(taxonomy.error_types), [e.error_type for f in marked for e in f.errors]),
        missing_info_types=_type_counts(
            tuple(taxonomy.missing), [m.error_type for f in marked for m in f.missing_info]
        ),
        agreement={name: agreement_with(human, order) for name, order in orders.items()} if human else {},
    )


def report_table(report: FeedbackReport) -> str:
    """The report as a table for people."""
    lines = [f"{report.examples} examples", "", "Spans marked"]
    lines += _rows([(name, count) for name, count in report.span_types.items()])
    if report.missing_info_types:
        lines += ["", "Missing information"]
        lines += _rows([(name, count) for name, count in report.missing_info_types.items()])
    lines += ["", "Segment labels", _line("reward model", "examples", "has error", "no error", "share of errors")]
    for name, labels in report.labels.items():
        total = labels.has_error + labels.no_error
        share = f"{labels.has_error / total:.3f}" if total else "-"
        lines.append(_line(name, labels.examples, labels.has_error, labels.no_error, share))
    if report.comparisons:
        lines += ["", "Comparisons", _line("reward model", "examples", "first", "second", "ties")]
    for name, pairs in report.comparisons.items():
        lines.append(_line(name, pairs.examples, pairs.first, pairs.second, pairs.ties))
    if report.agreement:
        lines += ["", "Agreement with the human preferences", _line("order by", "compared", "agree", "share")]
    for name, agreed in report.agreement.items():
        lines.append(_line(name.replace("_", " "), agreed.compared, agreed.agree, _share(agreed.share)))
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _rows(rows: Sequence[tuple[str, int]]) -> list[str]:
    return [_line(name, count) for name, count in rows]


def _line(first: str, *rest: object) -> str:
    return f"  {first:<26}" + "".join(f"{value!s:>17}" for value in rest)


@dataclass(frozen=True)
class InspectFeedback(Settings):
    """The job of `finegrained inspect-feedback`.

    Attributes:
        data: a feedback file.
        taxonomy: what was marked.
        format: `table`, or `json` for one JSON document.
        segmenter: `rules`, or the name of an installed spaCy pipeline.
        completeness: how completeness pairs are made.
    """

    data: InputFile
    taxonomy: Taxonomy = QA_FEEDBACK
    format: ReportFormat = "table"
    segmenter: str = DEFAULT_SEGMENTER
    completeness: CompletenessConfig = CompletenessConfig()

    def run(self) -> FeedbackReport:
        """Read the file, count, print."""
        records = read_feedback(self.data, self.taxonomy)
        segmenter = SpacySegmenter(self.segmenter)
        report = inspect_feedback(records, segmenter, self.completeness.matching, self.taxonomy)
        print(json.dumps(report.to_json(), indent=2) if self.format == "json" else report_table(report))
        return report
