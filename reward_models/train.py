"""Training a reward model: its loss, what selects it, how it is put together, and what is measured in the end.

A bottleneck is fitted in one go instead (`train_bottleneck`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import atomic_directory, write_json
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.metrics.detection import uninformative
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import LoopState
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.optimizer import Optimizer
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.supervised.trainer import AdditiveTrainer, SupervisedModelTrainer
from reward_models.bottleneck.fit import FitSettings, fit_bottleneck
from reward_models.bottleneck.model import COMPONENTS, Bottleneck, BottleneckRecord, SentenceEncoder
from reward_models.config import BottleneckConfig
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
from reward_models.encoders.counts import CountLayer
from reward_models.encoders.inputs import RewardInputEncoder
from reward_models.encoders.models import RewardModel, load_reward_model, new_reward_model, raw_scores
from reward_models.job import TrainRewardModel
from reward_models.kinds import PairKind, SegmentKind, kinds_of
from reward_models.record import LEAST_STD, RewardModelRecord, error_label_ids
from reward_models.training.logistic import counted_items, fit_counts
from reward_models.training.objectives import LabelWeights, labelled_items, metrics_of, reward_model_objective
from reward_models.trust.judging import judge_by_bottleneck, marked_texts
from reward_models.trust.measure import measure_trust, trust_of

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes
    from reward_models.job import TrainRewardModel


logger = logging.getLogger(__name__)


class RewardModelTrainer(AdditiveTrainer[RewardExample], SupervisedModelTrainer[RewardExample]):
    """Trains a reward model on labelled examples; see `SupervisedTrainer`.

    The loss is the mean over the labelled segments (or pairs) of the whole batch.

    Args:
        job: batch sizes, layers, weights of labels, optimizer, what is selected by.
        model: to train.
        train: labelled examples, at least one.
        validation: labelled examples; may be empty.
        processes: of the run.

    Attributes:
        selected_by: the validation metric that the best checkpoint has most of, or `loss`, of which it has least.
        steps: training steps.
        records: feedback of the training examples, whose outputs give mean and std of a pair model's scores.
        trusted: feedback and examples, with their true labels, that the exported model's trust is measured on.
        bias: what counted words say, added in the loss of training alone (`objectives.biased`); None adds nothing.

    Raises:
        ConfigError: more layers are frozen than the model has.
        DataError: there is nothing to train on.
    """

    job: TrainRewardModel
    model: RewardModel
    sums: ClassVar[int] = 6

    def __init__(
        self,
        job: TrainRewardModel,
        model: RewardModel,
        train: Sequence[RewardExample],
        validation: Sequence[RewardExample],
        processes: Processes,
    ) -> None:
        config, kind = job.network, model.record.definition
        self.plan = BatchPlan(train, config.batches.batch_size, job.seed)
        self.steps: int = job.total_steps or config.steps or self.plan.steps(config.epochs or 1)
        self.weights = LabelWeights.balanced(train) if config.label_weights == "balanced" else LabelWeights()
        self.title, self.headline, self.form = config.kind, kind.headline, kind.form
        self.selected_by: str = config.selected_by or kind.selected_by
        self.records: Sequence[FeedbackRecord] = ()
        self.trusted: tuple[Sequence[FeedbackRecord], Sequence[RewardExample]] = (), ()
        self.bias: CountLayer | None = None
        by_length = sorted(validation, key=lambda example: example.length)
        self._rates = config.layers.prepare(model)
        super().__init__(job, model, train, by_length, processes)

    def new_optimizer(self) -> Optimizer:
        """Of the layers that are trained, at their rates."""
        config = self.job.network
        named = self.model.named_parameters()
        return config.optimizer.build(named, self.steps, self.processes, self._rates.__getitem__)

    def shardable(self) -> nn.Module | None:
        """A Longformer's attention here multiplies by weights of layers outside the layers' own passes."""
        return None if self.model.network.config.model_type == "longformer" else super().shardable()

    def batch(self, step: int) -> list[RewardExample]:
        """Examples of similar lengths."""
        return self.plan.batch(step)

    def count(self, batch: Sequence[RewardExample]) -> int:
        """Labelled segments, or pairs."""
        return labelled_items(batch)

    def groups(self, examples: Sequence[RewardExample], size: int | None, learn: bool) -> list[Sequence[RewardExample]]:
        """Runs of examples with at most `size` items together; one example with more items is a run of its own."""
        return in_batches(examples, size or sum(example.items for example in examples))

    def objective(self, examples: Sequence[RewardExample], count: float, step: int) -> tuple[Tensor, Tensor]:
        """The loss, and [6] as `metrics_of` takes them; those of a validation know no weights and no bias model."""
        extra = (self.weights, self.bias) if step else ()
        loss, sums = reward_model_objective(self.model, examples, *extra)
        return loss / count, sums

    def means(self, sums: Tensor) -> dict[str, float]:
        """Loss, accuracy, class-balanced metrics or spread."""
        return metrics_of(sums, self.form)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step; its metrics, and the items of the batch."""
        return {**super().train_step(step), "items": self.count(self.batch(step))}

    def score(self, metrics: Mapping[str, float]) -> float:
        """The metric `selected_by`, or less the loss; less 1 where scores of whole answers are closer than `LEAST_STD`.

        A model that has collapsed still orders pairs above chance by rounding, and must not be kept while there is one
        that has learnt.
        """
        collapsed = metrics.get("score_std", math.inf) < LEAST_STD
        return (-metrics["loss"] if self.selected_by == "loss" else metrics[self.selected_by]) - collapsed

    @staticmethod
    def copy_of(model: RewardModel, directory: Path) -> RewardModel:
        """The reward model that was saved in `directory`."""
        return load_reward_model(directory)

    def finish(self, result: LoopResult, run: RunDirectory) -> None:
        """Measure the exported model and write its trust report: against the labels and marks of the dev records."""
        super().finish(result, run)
        records, examples = self.trusted
        if not examples:
            return
        texts = marked_texts(records, _label_settings(self.job), SpacySegmenter(self.job.segmenter))
        report = measure_trust(self.model, examples, texts, self.job.sizes.eval_batch_size, self.processes)
        if self.processes.is_main:
            trust = report.to_json(self.job.validation_data or self.job.data)
            write_json(run.trust, trust)
            if problem := uninformative(trust):
                logger.warning("the reward model of %s %s; a policy learns nothing from it", run.path, problem)
        self.processes.barrier()

    def results(self, dev: Mapping[str, float], exported: Path) -> dict[str, Any]:
        """Kind, mean and std; those of the training outputs' scores are written into the exported model first."""
        best = self.model
        if self.form == "sequence" and best.record.std is None:
            best.record = with_moments(best, self.records, self.job.sizes.eval_batch_size, self.processes)
            if self.processes.is_main:
                self.save_again(exported)
        collapsed = {"collapsed": dev["score_std"] < LEAST_STD} if "score_std" in dev else {}
        return {"reward_model": self.title, "mean": best.record.mean, "std": best.record.std, **collapsed}


def in_batches(examples: Sequence[RewardExample], size: int) -> list[Sequence[RewardExample]]:
    """Runs of examples with at most `size` items together; one example with more items is a run of its own."""
    runs: list[Sequence[RewardExample]] = []
    start = items = 0
    for i, example in enumerate(examples):
        if i > start and items + example.items > size:
            runs.append(examples[start:i])
            start, items = i, 0
        items += example.items
    return [*runs, examples[start:]] if start < len(examples) else runs


def set_counts(layer: CountLayer, model: RewardModel, examples: Sequence[RewardExample], balanced: bool) -> None:
    """Fit a layer of counts to the training labels; the encoder of the model learns what it leaves over."""
    pairs = model.record.definition.form == "sequence"
    columns = range(layer.in_features)
    fitted = fit_counts([counted_items(example) for example in examples], columns, pairs, balanced)
    has_error = 0 if pairs else min(error_label_ids(model.model.config.id2label))
    layer.set(fitted.weights.tolist(), fitted.bias, has_error)


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


def assemble_reward_model(job: TrainRewardModel, processes: Processes) -> RewardModelTrainer:
    """Read and label the feedback, build the model and encode the examples.

    Raises:
        DataError: broken feedback, or no example is left after labelling.
        ModelError: `model` is no encoder.
    """
    train_records, validation_records = read_records(job)
    model = _new_model(job)
    encoder, bias = model.input_encoder(), None
    if job.network.counts == "debias":
        encoder.counts, bias = job.kind, CountLayer(job.kind, model.model.config.num_labels)
    train = _dealt(job, _examples(job, train_records, encoder, job.data))
    validation = _examples(job, validation_records, encoder, job.validation_data or job.data, needed=False)
    if (layer := model.counts or bias) is not None:
        set_counts(layer, model, train, job.network.label_weights == "balanced")
    trainer = RewardModelTrainer(job, model, train, _dealt(job, validation), processes)
    trainer.records, trainer.trusted = train_records, (validation_records, validation)
    trainer.bias = None if bias is None else bias.to(processes.device)
    return trainer


def read_records(job: TrainRewardModel) -> tuple[list[FeedbackRecord], list[FeedbackRecord]]:
    """The records to train on, and those to select by or to measure on.

    Raises:
        DataError: broken feedback, or too few records to hold some out.
    """
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
    config = job.network
    record = RewardModelRecord.of(
        job.kind,
        global_attention=config.global_attention,
        max_length=config.max_length,
        segmenter=job.segmenter,
        passages=config.passages,
        counts=config.counts is True,
        passage_tokens=config.passage_tokens,
        prefixes=config.inputs.prefixes,
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
        kind = job.network.kind
        raise DataError(f"no record gives a {kind} label to train on ({len(records)} read)", file=file)
    labels = {label for example in examples for label in example.labels if label is not None}
    if needed and len(labels) == 1 and not any(example.pairs for example in examples):
        only = "an error" if labels == {1} else "no error"
        raise DataError(
            f"every {job.network.kind} label of the {len(records)} records is {only!r}: with one class "
            "there is nothing to learn",
            file=file,
        )
    return weighted(examples, job.network.annotator_weights == "agreement")


def _dealt(job: TrainRewardModel, examples: list[RewardExample]) -> list[RewardExample]:
    """The examples to train and select with: of a control, with labels in random order."""
    return shuffled(examples, job.seed) if job.network.shuffle_labels else examples


def _label_settings(job: TrainRewardModel) -> LabelSettings:
    kind = job.kind
    if isinstance(kind, SegmentKind):
        kind = kind.with_min_words(job.network.min_span_words)
    return LabelSettings(kind, job.completeness.matching, job.network.inputs.prefixes)


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
            judged = judge_by_bottleneck(model, records[1], LabelSettings(kinds[name], job.completeness.matching))
            if judged[0]:
                dev[name] = trust_of(name, *judged).to_json(job.validation_data or job.data)
        write_json(run.state, LoopState(1, 1).to_json(1))
        fitted = {"need": learnt.to_json(), "weights": model.weights}
        run.write_results({"train_examples": len(records[0]), "dev_examples": len(records[1]), **fitted, "dev": dev})
        shown = ", ".join(f"{name} {report['accuracy']:.3f}" for name, report in dev.items())
        print(f"bottleneck: dev accuracy {shown or 'not measured'}")
    processes.barrier()
    return result
