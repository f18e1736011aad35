"""Measuring a trained reward model on a feedback file: what `finegrained evaluate-reward-model` builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.metrics.stress import OTHER_WEIGHTS, read_stress, stress_table
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.bottleneck.model import COMPONENTS, Bottleneck, bottleneck_directory, load_bottleneck
from reward_models.data.examples import LabelSettings, build_examples
from reward_models.encoders.models import RewardModel, load_reward_model
from reward_models.kinds import Kind, SegmentKind, kind_named, kinds_of
from reward_models.pairs import CompletenessConfig
from reward_models.record import RewardModelRecord
from reward_models.trust.items import judged_records, write_judged_records
from reward_models.trust.job import EvaluateRewardModel, trust_page
from reward_models.trust.judging import Judged, Judgements, judge_by_bottleneck, judge_examples, marked_texts
from reward_models.trust.measure import TrustReport, trust_of


def stress_part(path: str) -> str:
    """What `finegrained stress-test` made of a model, as Markdown; says so where nobody attacked it.

    Raises:
        DataError: its `stress.json` is none.
    """
    values = read_stress(path)
    if values is None:
        return "\nStress test: none beside the model (finegrained stress-test attacks the reward it is part of)\n"
    if values["other_weights"]:
        return f"\nStress test: {OTHER_WEIGHTS}\n"
    return f"\nStress test on {values.get('data')}:\n\n{stress_table(values)}\n"


def evaluate_reward_model(job: EvaluateRewardModel) -> TrustReport:
    """Measure a reward model on a feedback file; the main process writes and prints the report."""
    processes, kinds = Processes(job.processes), kinds_of(job.taxonomy)
    model: Bottleneck | RewardModel
    if bottleneck_directory(job.path) is None:
        default = None if job.kind is None else RewardModelRecord.of(kind_named(job.kind, kinds))
        model = load_reward_model(job.path, default).to(processes.device)
        kind = model.record.definition
    else:
        if job.kind is None or job.kind not in COMPONENTS:
            raise ConfigError(f"kind: {job.path} holds several components; say which: {', '.join(COMPONENTS)}")
        model, kind = load_bottleneck(job.path, processes.device), kinds[job.kind]
    settings, records = label_settings(job, kind), read_feedback(job.data, job.taxonomy)
    if isinstance(model, Bottleneck):
        judged = judge_by_bottleneck(model, records, settings)
    else:
        judged = _judge(job, model, records, settings, processes)
    if not judged[0]:
        name = settings.kind.name
        raise DataError(f"no record gives a {name} label to compare with ({len(records)} read)", file=job.data)
    report = trust_of(settings.kind.name, *judged)
    if processes.is_main:
        if job.items is not None:
            write_judged_records(job.items, judged_records(*judged))
        values = report.to_json(job.data)
        write_json(job.output, values)
        print(f"{trust_page(values)}{stress_part(job.path)}\nreport: {job.output}")
    return report


def _judge(
    job: EvaluateRewardModel,
    model: RewardModel,
    records: Sequence[FeedbackRecord],
    settings: LabelSettings,
    processes: Processes,
) -> Judged:
    segmenter = SpacySegmenter(job.segmenter or model.record.named_segmenter)
    prefixes = model.record.prefixes if job.prefixes is None else job.prefixes
    try:
        examples = build_examples(records, replace(settings, prefixes=prefixes), model.input_encoder(), segmenter)
    except DataError as error:
        raise error.at(file=job.data) from None
    texts = marked_texts(records, settings, segmenter)
    return examples, texts, judge_examples(model, examples, job.batch_size, processes) if examples else Judgements()


def label_settings(job: EvaluateRewardModel, kind: Kind) -> LabelSettings:
    """How labels are made: as told, else as the run in `path` made them, else as the original code does."""
    run = RunDirectory(job.path)
    config = run.read_config() if run.config_path.is_file() else {}
    matching = job.matching or config.get("completeness", {}).get("matching", "original")
    words = job.min_span_words
    if words is None:
        words = config.get("reward_model", {}).get("min_span_words")
    if isinstance(kind, SegmentKind):
        kind = kind.with_min_words(words)
    elif kind.name in kinds_of(job.taxonomy):
        kind = kinds_of(job.taxonomy)[kind.name]
    return LabelSettings(kind, CompletenessConfig(matching).matching)
