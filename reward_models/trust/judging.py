"""What a reward model, or a bottleneck, says of labelled examples: of their segments, or of whole answers.

Does not hold it against anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from finegrained_rlhf.feedback.labels import SegmentLabels
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import Segmenter, Span, trim
from reward_models.bottleneck.model import Bottleneck
from reward_models.data.examples import LabelSettings, RewardExample
from reward_models.encoders.inputs import EncodedInput, batches_by_length
from reward_models.encoders.models import RewardModel, raw_scores
from reward_models.kinds import PairKind, SegmentKind
from reward_models.record import error_label_ids


@dataclass(frozen=True)
class SegmentVerdicts:
    """What a model says of the segments of one input.

    Attributes:
        probabilities: of "has error", one a segment.
        claims: whether an error label is the most probable one, as the scorer decides.
    """

    probabilities: tuple[float, ...]
    claims: tuple[bool, ...]


@torch.no_grad()
def segment_verdicts(model: RewardModel, inputs: Sequence[EncodedInput], batch_size: int) -> list[SegmentVerdicts]:
    """What `model` says of each input's segments, in the order of `inputs`; computed in batches by length.

    The probabilities of an input are those of the error labels at its separators: the sum over the wrong columns of
    softmax(logits [S, labels]).
    """
    wrong = sorted(error_label_ids(model.model.config.id2label))
    verdicts: dict[int, SegmentVerdicts] = {}
    for rows, batch in batches_by_length(inputs, batch_size, model.pad_id, model.device):
        logits = model.segment_logits(batch).cpu().double()
        probabilities = logits.softmax(dim=-1)[:, wrong].sum(dim=-1).clamp(0.0, 1.0)
        claims = torch.isin(logits.argmax(dim=-1), torch.tensor(wrong))
        lengths = [len(inputs[row].separators) for row in rows]
        parts = zip(rows, probabilities.split(lengths), claims.split(lengths), strict=True)
        verdicts |= {row: SegmentVerdicts(tuple(p.tolist()), tuple(c.tolist())) for row, p, c in parts}
    return [verdicts[row] for row in range(len(inputs))]


def _of_example(example: RewardExample, verdicts: Sequence[SegmentVerdicts]) -> SegmentVerdicts:
    """What was said of an answer's segments, from the verdicts on its inputs."""
    probabilities = [p for verdict in verdicts for p in verdict.probabilities]
    claims = [claim for verdict in verdicts for claim in verdict.claims]
    judged = example.judged or range(len(claims))
    return SegmentVerdicts(tuple(probabilities[i] for i in judged), tuple(claims[i] for i in judged))


@dataclass(frozen=True)
class Judgements:
    """What a model says of examples, one entry an example; the list of the other form is empty.

    Attributes:
        verdicts: of a segment model.
        scores: of a pair model, the raw scores of an example's answers.
    """

    verdicts: Sequence[SegmentVerdicts] = ()
    scores: Sequence[Sequence[float]] = ()


def judge_examples(
    model: RewardModel, examples: Sequence[RewardExample], batch_size: int, processes: Processes
) -> Judgements:
    """What a model in evaluation mode says of examples. A collective call: processes share the work, all get all."""
    share = [examples[i] for i in processes.share(len(examples))]
    with processes.autocast():
        if model.record.labels_segments:
            of_inputs = iter(segment_verdicts(model, [item for e in share for item in e.inputs], batch_size))
            verdicts = [_of_example(example, [next(of_inputs) for _ in example.inputs]) for example in share]
            return Judgements(verdicts=processes.gather_objects(verdicts))
        scores = raw_scores(model, [item for example in share for item in example.inputs], batch_size)
    split = scores.split([len(example.inputs) for example in share]) if share else ()
    return Judgements(scores=processes.gather_objects([part.tolist() for part in split]))


@dataclass(frozen=True)
class MarkedText:
    """An answer with what people marked in it.

    Attributes:
        text: the answer.
        segments: its segments with their labels.
        marked: distinct spans of the component's category that the labels were made from.
    """

    text: str
    segments: SegmentLabels
    marked: tuple[Span, ...]


def marked_texts(
    records: Sequence[FeedbackRecord], settings: LabelSettings, segmenter: Segmenter
) -> list[MarkedText] | None:
    """The texts behind the examples that `build_examples` makes of the same records; None for a pair model."""
    kind = settings.kind
    if not isinstance(kind, SegmentKind):
        return None
    texts = []
    for record, answer in [(one, answer) for one in records for answer in one.marked]:
        labels, text = kind.labels(record, segmenter, answer), record.predictions[answer]
        if labels.teaches:
            spans = [(e.start, e.end) for e in kind.marks(record, answer)]
            texts.append(MarkedText(text, labels, tuple(s for s in dict.fromkeys(spans) if trim(s, text) is not None)))
    return texts


Judged = tuple[list[RewardExample], list[MarkedText] | None, Judgements]


def judge_by_bottleneck(model: Bottleneck, records: Sequence[FeedbackRecord], settings: LabelSettings) -> Judged:
    """What a bottleneck says of one kind's labels, as `trust_of` takes it; examples have no inputs."""
    kind = settings.kind
    sources = [model.source(record.question, record.passages) for record in records]
    examples: list[RewardExample] = []
    if isinstance(kind, PairKind):
        scores = []
        for record, source in zip(records, sources, strict=True):
            if pairs := kind.pairs([record], model.segmenter, settings.matching).pairs:
                examples.append(RewardExample((), (), tuple((p.better, p.worse) for p in pairs), record.id))
                scores.append([model.score(kind.name, source, text) for text in record.predictions])
        return examples, None, Judgements(scores=scores)
    texts: list[MarkedText] = []
    verdicts = []
    for record, source in zip(records, sources, strict=True):
        for text in marked_texts([record], settings, model.segmenter) or ():
            texts.append(text)
            wrong = model.errors(kind.name, source, [text.text[start:end] for start, end in text.segments.spans])
            verdicts.append(SegmentVerdicts(tuple(wrong.tolist()), tuple((wrong > 0.5).tolist())))
            examples.append(RewardExample((), text.segments.labels, record=record.id))
    return examples, texts, Judgements(verdicts=verdicts)
