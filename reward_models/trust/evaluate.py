"""Measuring a trained reward model on a feedback file: what `finegrained evaluate-reward-model` builds and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.metrics.stress import OTHER_WEIGHTS, read_stress, stress_table
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.tables import cell, markdown_table
from reward_models.bottleneck.model import COMPONENTS, bottleneck_directory, load_bottleneck
from reward_models.data.examples import LabelSettings, build_examples
from reward_models.encoders.models import RewardModel, load_reward_model
from reward_models.kinds import Kind, SegmentKind, kind_named, kinds_of
from reward_models.labels.pairs import CompletenessConfig
from reward_models.record import RewardModelRecord
from reward_models.trust.bottleneck import judge
from reward_models.trust.items import JudgedRecord, judged_records, write_judged_records
from reward_models.trust.job import EvaluateRewardModel
from reward_models.trust.judging import judge_examples
from reward_models.trust.measure import TrustReport, marked_texts, trust_of


def trust_page(values: Mapping[str, Any]) -> str:
    """A report (`TrustReport.to_json`) as Markdown for people."""
    segments = "confusion" in values
    unit = "labelled segments" if segments else "ordered pairs"
    lines = [f"{values['reward_model']}: {values['items']} {unit} of {values['examples']} records in {values['data']}"]
    names = ["accuracy", *(["precision", "recall", "f1"] if segments else [])]
    table = [{"measured on": unit, **{name: values[name] for name in names}}]
    if segments:
        span = values["span"]
        table.append({"measured on": "spans", **{name: span[name] for name in ("precision", "recall", "f1")}})
    lines += ["", markdown_table(table, ["measured on", *names])]
    if segments:
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in values["confusion"].items())
        lines += [f"has_error: {counts}; {span['annotated']} spans marked, {span['claimed']} claimed", ""]
    what = "has_error" if segments else "the predicted winner"
    curve = values["calibration"]
    lines += [f"Probability of {what}: expected calibration error {cell(curve['ece'])}", ""]
    bins = [{**row, "bin": f"{row['low']:.2f}–{row['high']:.2f}"} for row in curve["bins"]]
    return "\n".join([*lines, markdown_table(bins, ["bin", "count", "predicted", "observed"])])


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
    processes = Processes(job.processes)
    kinds = kinds_of(job.taxonomy)
    default = None if job.kind is None else RewardModelRecord.of(kind_named(job.kind, kinds))
    if bottleneck_directory(job.path) is not None:
        report, items = _of_bottleneck(job, processes)
    else:
        report, items = _measure(job, load_reward_model(job.path, default).to(processes.device), processes)
    if processes.is_main:
        if job.items is not None:
            write_judged_records(job.items, items)
        values = report.to_json(job.data)
        write_json(job.output, values)
        print(f"{trust_page(values)}{stress_part(job.path)}\nreport: {job.output}")
    return report


def _of_bottleneck(job: EvaluateRewardModel, processes: Processes) -> tuple[TrustReport, list[JudgedRecord]]:
    kinds = kinds_of(job.taxonomy)
    if job.kind is None or job.kind not in COMPONENTS:
        raise ConfigError(f"kind: {job.path} holds several components; say which: {', '.join(COMPONENTS)}")
    model = load_bottleneck(job.path, processes.device)
    settings, records = label_settings(job, kinds[job.kind]), read_feedback(job.data, job.taxonomy)
    examples, texts, judgements = judge(model, records, settings)
    if not examples:
        raise DataError(f"no record gives a {job.kind} label to compare with ({len(records)} read)", file=job.data)
    return trust_of(job.kind, examples, texts, judgements), judged_records(examples, texts, judgements)


def _measure(
    job: EvaluateRewardModel, model: RewardModel, processes: Processes
) -> tuple[TrustReport, list[JudgedRecord]]:
    settings = label_settings(job, model.record.definition)
    prefixes = model.record.prefixes if job.prefixes is None else job.prefixes
    settings = replace(settings, prefixes=prefixes)
    segmenter = SpacySegmenter(job.segmenter or model.record.named_segmenter)
    records = read_feedback(job.data, job.taxonomy)
    try:
        examples = build_examples(records, settings, model.input_encoder(), segmenter)
    except DataError as error:
        raise error.at(file=job.data) from None
    if not examples:
        raise DataError(
            f"no record gives a {settings.kind.name} label to compare with ({len(records)} read)", file=job.data
        )
    texts = marked_texts(records, settings, segmenter)
    judgements = judge_examples(model, examples, job.batch_size, processes)
    items = judged_records(examples, texts, judgements)
    return trust_of(settings.kind.name, examples, texts, judgements), items


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
