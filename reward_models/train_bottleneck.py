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
from reward_models.data.examples import LabelSettings
from reward_models.kinds import kinds_of
from reward_models.trust.bottleneck import judge
from reward_models.trust.measure import trust_of

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes
    from reward_models.job import TrainRewardModel


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
            learnt = fit_bottleneck(model, records[0], config, settings)
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
        fitted = {"need": learnt.to_json(), "weights": model.weights}
        run.write_results({"train_examples": len(records[0]), "dev_examples": len(records[1]), **fitted, "dev": dev})
        shown = ", ".join(f"{name} {report['accuracy']:.3f}" for name, report in dev.items())
        print(f"bottleneck: dev accuracy {shown or 'not measured'}")
    processes.barrier()
    return result
