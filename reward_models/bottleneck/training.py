"""A bottleneck in a run directory: fitted, written, and held against the records that it did not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import atomic_directory, write_json
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import LoopState
from finegrained_rlhf.runtime.loop.types import LoopResult
from reward_models.bottleneck.config import BottleneckConfig
from reward_models.bottleneck.fit import FitSettings, fit_bottleneck
from reward_models.bottleneck.model import COMPONENTS, Bottleneck, BottleneckRecord, SentenceEncoder
from reward_models.data.examples import LabelSettings, RewardExample
from reward_models.kinds import PairKind, kinds_of
from reward_models.trust.judging import Judgements, SegmentVerdicts
from reward_models.trust.measure import MarkedText, marked_texts, trust_of

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes
    from reward_models.job import TrainRewardModel

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


def train_bottleneck(
    job: TrainRewardModel,
    records: tuple[Sequence[FeedbackRecord], Sequence[FeedbackRecord]],
    processes: Processes,
    run: RunDirectory,
) -> LoopResult:
    """Fit, write the model, and measure it on the held-out records. There is one step, and no checkpoint.

    Args:
        job: whose `reward_model` is a `BottleneckConfig`.
        records: to fit on, and to measure on (may be empty).
        processes: of the run; the main one does the work.
        run: where it is written.

    Raises:
        DataError: nobody said anything of a component, or no record has a gold answer and passages.
        ModelError: `model` is no encoder.
    """
    result = LoopResult(1, 1, None, None)
    if processes.is_main:
        config, kinds = job.reward_model, kinds_of(job.taxonomy)
        assert isinstance(config, BottleneckConfig)
        encoder = SentenceEncoder(job.model).to(processes.device)
        record = BottleneckRecord(job.model, encoder.digest, job.segmenter)
        model, settings = Bottleneck(record, encoder, {}), FitSettings(kinds, job.completeness.matching, job.seed)
        try:
            fit_bottleneck(model, records[0], config, settings)
        except DataError as error:
            raise error.at(file=job.data) from None
        with atomic_directory(run.final(job.export)) as directory:
            model.save(directory)
        dev = {}
        for name in COMPONENTS if records[1] else ():
            judged = judge(model, records[1], LabelSettings(kinds[name], job.completeness.matching))
            if judged[0]:
                dev[name] = trust_of(name, *judged).to_json(job.validation_data or job.data)
        write_json(run.state, LoopState(1, 1).to_json(1))
        run.write_results({"train_examples": len(records[0]), "dev_examples": len(records[1]), "dev": dev})
        shown = ", ".join(f"{name} {report['accuracy']:.3f}" for name, report in dev.items())
        print(f"bottleneck: dev accuracy {shown or 'not measured'}")
    processes.barrier()
    return result
