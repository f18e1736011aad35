"""How the training of a reward model is put together and carried out: what the methods of `TrainRewardModel` do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import atomic_directory, write_json
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.metrics.detection import uninformative
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import EXPORT_RECORD
from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.data.examples import (
    BatchPlan,
    LabelSettings,
    RewardExample,
    build_examples,
    hold_out,
    output_inputs,
    shuffled,
    weighted,
)
from reward_models.encoders.inputs import RewardInputEncoder
from reward_models.encoders.models import RewardModel, load_reward_model, new_reward_model
from reward_models.job import TrainRewardModel
from reward_models.kinds import PairKind, SegmentKind
from reward_models.record import LEAST_STD, RewardModelRecord, error_label_ids
from reward_models.training.logistic import counted_items, fit_counts
from reward_models.training.objectives import LabelWeights
from reward_models.training.trainer import Assembled, RewardModelTrainer, raw_scores
from reward_models.trust.measure import marked_texts, measure_trust

logger = logging.getLogger(__name__)


def set_counts(model: RewardModel, examples: Sequence[RewardExample], balanced: bool) -> None:
    """Fit the layer of counts to the training labels; the encoder learns what it leaves over."""
    assert model.counts is not None
    pairs = model.record.definition.form == "sequence"
    columns = range(model.counts.in_features)
    fitted = fit_counts([counted_items(example) for example in examples], columns, pairs, balanced)
    has_error = 0 if pairs else min(error_label_ids(model.model.config.id2label))
    model.counts.set(fitted.weights.tolist(), fitted.bias, has_error)


def with_moments(
    model: RewardModel, records: Sequence[FeedbackRecord], batch_size: int, processes: Processes
) -> RewardModelRecord:
    """The record of a pair model with mean and (population) std of its raw scores of all answers in `records`.

    The std of equal scores is 0 and would divide by zero: it is recorded as 1 then. A warning says where the scores
    hardly differ: such a model may order pairs well above chance, but the reward would be made of rounding.
    """
    kind = model.record.definition
    assert isinstance(kind, PairKind)
    inputs = output_inputs(kind, records, model.input_encoder())
    share = [inputs[i] for i in processes.share(len(inputs))]
    with processes.autocast():
        scores = raw_scores(model, share, batch_size).double()
    total = processes.sum_(torch.stack([scores.sum(), torch.tensor(float(len(share)), dtype=torch.float64)]))
    mean = float(total[0] / total[1])
    squares = processes.sum_(((scores - mean) ** 2).sum())
    std = float((squares / total[1]).sqrt())
    if std < LEAST_STD and processes.is_main:
        logger.warning(
            "%s: the scores of the training outputs have a standard deviation of %.2g, so the model has hardly learned "
            "anything, whatever its accuracy; train it longer or with another learning rate",
            model.record.kind,
            std,
        )
    return replace(model.record, mean=mean, std=std if std > 0 else 1.0)


def train_reward_model(job: TrainRewardModel, built: Assembled, processes: Processes, run: RunDirectory) -> LoopResult:
    """Run the loop, then measure the exported model and write its trust report."""
    trainer = built.trainer
    result = job.fit(trainer, built.loop, processes, run)
    _finish(job, trainer, run, result, built.train_records, processes, built.train_examples)
    if built.validation:
        _write_trust(job, trainer.model, run, built.validation_records, built.validation, processes)
    return result


def assemble_reward_model(job: TrainRewardModel, processes: Processes, run: RunDirectory) -> Assembled:
    """Read and label the feedback, build the model and encode the examples."""
    train_records, validation_records = _read(job)
    model = _new_model(job)
    encoder = model.input_encoder()
    train = _dealt(job, _examples(job, train_records, encoder, job.data))
    validation = _examples(job, validation_records, encoder, job.validation_data or job.data, needed=False)
    if model.counts is not None:
        set_counts(model, train, job.reward_model.label_weights == "balanced")
    trainer, loop = _trainer(job, model, train, _dealt(job, validation), processes)
    return Assembled(trainer, loop, train_records, validation_records, len(train), validation)


def _read(job: TrainRewardModel) -> tuple[list[FeedbackRecord], list[FeedbackRecord]]:
    records = read_feedback(job.data, job.taxonomy)
    if job.validation_data is None and job.held_out == 0:
        return records, []
    if job.validation_data is None:
        try:
            return hold_out(records, job.held_out, job.seed)
        except DataError as error:
            raise error.at(file=job.data) from None
    return records, read_feedback(job.validation_data, job.taxonomy)


def _new_model(job: TrainRewardModel) -> RewardModel:
    config = job.reward_model
    record = RewardModelRecord.of(
        job.kind,
        global_attention=config.global_attention,
        max_length=config.max_length,
        segmenter=job.segmenter,
        passages=config.passages,
        counts=config.counts,
        passage_tokens=config.passage_tokens,
    )
    return new_reward_model(job.model, record)


def _examples(
    job: TrainRewardModel,
    records: Sequence[FeedbackRecord],
    encoder: RewardInputEncoder,
    file: str,
    needed: bool = True,
) -> list[RewardExample]:
    try:
        examples = build_examples(records, _label_settings(job), encoder, SpacySegmenter(job.segmenter))
    except DataError as error:
        raise error.at(file=file) from None
    if needed and not examples:
        kind = job.reward_model.kind
        raise DataError(f"no record gives a {kind} label to train on ({len(records)} read)", file=file)
    labels = {label for example in examples for label in example.labels if label is not None}
    if needed and len(labels) == 1 and not any(example.pairs for example in examples):
        only = "an error" if labels == {1} else "no error"
        raise DataError(
            f"every {job.reward_model.kind} label of the {len(records)} records is {only!r}: with one class "
            "there is nothing to learn",
            file=file,
        )
    return weighted(examples, job.reward_model.annotator_weights == "agreement")


def _dealt(job: TrainRewardModel, examples: list[RewardExample]) -> list[RewardExample]:
    """The examples to train and select with: of a control, with labels in random order."""
    return shuffled(examples, job.seed) if job.reward_model.shuffle_labels else examples


def _label_settings(job: TrainRewardModel) -> LabelSettings:
    kind = job.kind
    if isinstance(kind, SegmentKind):
        kind = kind.with_min_words(job.reward_model.min_span_words)
    return LabelSettings(kind, job.completeness.matching)


def _trainer(
    job: TrainRewardModel,
    model: RewardModel,
    train: Sequence[RewardExample],
    validation: Sequence[RewardExample],
    processes: Processes,
) -> tuple[RewardModelTrainer, LoopConfig]:
    config = job.reward_model
    plan = BatchPlan(train, config.batches.batch_size, job.seed)
    steps = job.total_steps or config.steps or plan.steps(config.epochs or 1)
    weights = LabelWeights.balanced(train) if config.label_weights == "balanced" else LabelWeights()
    trainer = RewardModelTrainer(
        model,
        train,
        validation,
        config.batches,
        config.optimizer,
        steps,
        processes,
        job.seed,
        config.layers,
        weights,
        config.selected_by,
    )
    return trainer, job.loop_settings(steps, epoch=plan.steps(1), validates=bool(validation))


def _finish(
    job: TrainRewardModel,
    trainer: RewardModelTrainer,
    run: RunDirectory,
    result: LoopResult,
    records: Sequence[FeedbackRecord],
    processes: Processes,
    examples: int,
) -> None:
    """Write `metrics.json`, and mean and std of the training outputs' scores into the exported model."""
    best = load_reward_model(run.final("model")).to(processes.device)
    trainer.model = best
    dev = trainer.validate(result.best_step)
    if best.record.definition.form == "sequence" and best.record.std is None:
        best.record = with_moments(best, records, job.reward_model.batches.eval_batch_size, processes)
        if processes.is_main:
            export = (run.final("model") / EXPORT_RECORD).read_text(encoding="utf-8")
            with atomic_directory(run.final("model")) as directory:
                best.save(directory)
                (directory / EXPORT_RECORD).write_text(export, encoding="utf-8")
    if processes.is_main:
        dev.pop("score", None)
        summary: dict[str, Any] = {
            "reward_model": job.reward_model.kind,
            "best_step": result.best_step,
            "steps": result.step,
            "train_examples": examples,
            "dev_examples": len(trainer.validation),
            "dev": dev,
            "mean": best.record.mean,
            "std": best.record.std,
        }
        summary |= {"collapsed": dev["score_std"] < LEAST_STD} if "score_std" in dev else {}
        run.write_results(summary)
        shown = ", ".join(f"{name} {dev[name]:.3f}" for name in best.record.definition.headline if name in dev)
        print(f"{job.reward_model.kind}: best at step {result.best_step}, dev {shown or 'not measured'}")
    processes.barrier()


def _write_trust(
    job: TrainRewardModel,
    best: RewardModel,
    run: RunDirectory,
    records: Sequence[FeedbackRecord],
    examples: Sequence[RewardExample],
    processes: Processes,
) -> None:
    """Write `trust.json`: the best model against the labels and marks of the dev records."""
    texts = marked_texts(records, _label_settings(job), SpacySegmenter(job.segmenter))
    report = measure_trust(best, examples, texts, job.reward_model.batches.eval_batch_size, processes)
    if processes.is_main:
        trust = report.to_json(job.validation_data or job.data)
        write_json(run.trust, trust)
        if problem := uninformative(trust):
            logger.warning("the reward model of %s %s; a policy learns nothing from it", run.path, problem)
    processes.barrier()
