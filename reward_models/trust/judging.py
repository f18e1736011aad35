"""What a reward model says of labelled examples: probabilities of its segments, or scores of whole answers.

Does not hold them against anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from finegrained_rlhf.runtime.processes import Processes
from reward_models.data.examples import RewardExample
from reward_models.encoders.inputs import EncodedInput, batches_by_length
from reward_models.encoders.models import RewardModel, raw_scores
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
