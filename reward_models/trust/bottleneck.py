"""What a bottleneck says of people's labels, as a trust report takes it."""

from __future__ import annotations

from collections.abc import Sequence

from finegrained_rlhf.feedback.records import FeedbackRecord
from reward_models.bottleneck.model import Bottleneck
from reward_models.data.examples import LabelSettings, RewardExample
from reward_models.kinds import PairKind
from reward_models.trust.judging import Judgements, SegmentVerdicts
from reward_models.trust.measure import MarkedText, marked_texts

Judged = tuple[list[RewardExample], list[MarkedText] | None, Judgements]


def judge(model: Bottleneck, records: Sequence[FeedbackRecord], settings: LabelSettings) -> Judged:
    """What a bottleneck says of one kind's labels, as `trust_of` takes it; examples have no inputs."""
    kind, texts = settings.kind, marked_texts(records, settings, model.segmenter)
    sources = [model.source(record.question, record.passages) for record in records]
    examples: list[RewardExample] = []
    if isinstance(kind, PairKind):
        scores = []
        for record, source in zip(records, sources, strict=True):
            if pairs := kind.pairs([record], model.segmenter, settings.matching).pairs:
                examples.append(RewardExample((), (), tuple((p.better, p.worse) for p in pairs), record.id))
                scores.append([model.score(kind.name, source, text) for text in record.predictions])
        return examples, None, Judgements(scores=scores)
    verdicts = []
    for record, source in zip(records, sources, strict=True):
        for text in marked_texts([record], settings, model.segmenter) or ():
            segments = [text.text[start:end] for start, end in text.segments.spans]
            wrong = model.errors(kind.name, source, segments)
            verdicts.append(SegmentVerdicts(tuple(wrong.tolist()), tuple((wrong > 0.5).tolist())))
            examples.append(RewardExample((), text.segments.labels, record=record.id))
    return examples, texts, Judgements(verdicts=verdicts)
