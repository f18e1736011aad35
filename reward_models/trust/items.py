"""What a model, or any other judge, said of each record: rows from which every metric and its spread can be made.

Spans come as counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from reward_models.data.examples import RewardExample
from reward_models.trust.judging import Judgements, MarkedText
from reward_models.trust.measure import span_scores


@dataclass(frozen=True)
class JudgedRecord:
    """One record as it was judged.

    Attributes:
        record: its id.
        has_error: of each labelled segment, whether people marked an error.
        probabilities: of each of them, the probability of an error that the judge gives.
        claims: of each of them, whether the judge claims one.
        gaps: of each ordered pair of answers, the better one's score less the worse one's, in logits.
        found: marked spans that claims cover.
        annotated: marked spans.
        right: claimed spans that touch marked ones.
        claimed: claimed spans.
    """

    record: str
    has_error: tuple[bool, ...] = ()
    probabilities: tuple[float, ...] = ()
    claims: tuple[bool, ...] = ()
    gaps: tuple[float, ...] = ()
    found: int = 0
    annotated: int = 0
    right: int = 0
    claimed: int = 0


def judged_segments(
    record: str, text: MarkedText, probabilities: Sequence[float], claims: Sequence[bool]
) -> JudgedRecord:
    """A record with labels of segments; probabilities and claims are of all its segments."""
    spans = span_scores([text], [claims])
    rows = [
        (bool(label), probability, claim)
        for label, probability, claim in zip(text.segments.labels, probabilities, claims, strict=True)
        if label is not None
    ]
    truth, known, predicted = zip(*rows, strict=True)
    return JudgedRecord(
        record,
        truth,
        known,
        predicted,
        found=round(spans.recall * spans.annotated),
        annotated=spans.annotated,
        right=round(spans.precision * spans.claimed),
        claimed=spans.claimed,
    )


def judged_records(
    examples: Sequence[RewardExample], texts: Sequence[MarkedText] | None, judgements: Judgements
) -> list[JudgedRecord]:
    """A model's judgements by record; `texts` are those of the examples, None for a pair model."""
    if texts is None:
        return [
            JudgedRecord(example.record, gaps=tuple(scores[better] - scores[worse] for better, worse in example.pairs))
            for example, scores in zip(examples, judgements.scores, strict=True)
        ]
    return [
        judged_segments(example.record, text, verdict.probabilities, verdict.claims)
        for example, text, verdict in zip(examples, texts, judgements.verdicts, strict=True)
    ]


def write_judged_records(path: str | Path, records: Sequence[JudgedRecord]) -> None:
    """Write judged records as JSON lines."""
    write_jsonl(path, [asdict(record) for record in records])


def read_judged_records(path: str | Path) -> list[JudgedRecord]:
    """Read what `write_judged_records` wrote.

    Raises:
        DataError: a row lacks a field.
    """
    names = [field.name for field in fields(JudgedRecord)]
    records = []
    for number, row in enumerate(read_jsonl(path)):
        if missing := [name for name in names if name not in row]:
            raise DataError("expected a judged record", file=path, record=number, field=missing[0])
        values: dict[str, Any] = {
            name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in names
        }
        records.append(JudgedRecord(**values))
    return records
