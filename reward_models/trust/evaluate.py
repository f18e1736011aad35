"""Measuring a trained reward model on a feedback file: what `finegrained evaluate-reward-model` builds and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.hub.names import ModelPath
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.tables import cell, markdown_table
from reward_models.data.examples import LabelSettings, build_examples
from reward_models.encoders.models import RewardModel, load_reward_model
from reward_models.kinds import Kind, SegmentKind, kind_named, kinds_of
from reward_models.labels.completeness import CompletenessConfig, Matching
from reward_models.record import RewardModelRecord
from reward_models.trust.items import JudgedRecord, judged_records, write_judged_records
from reward_models.trust.judging import judge_examples
from reward_models.trust.measure import TrustReport, marked_texts, trust_of


@dataclass(frozen=True)
class EvaluateRewardModel:
    """Measure a reward model against people's labels on any feedback file.

    Attributes:
        path: directory of the model or of the run that trained it, or a Hub name.
        data: feedback file; best one that the model did not learn from.
        output: JSON file for the report.
        items: JSON-lines file for what the model said of each record (`trust/items.py`); None writes none.
        kind: of a model made elsewhere, which says nothing of itself; None takes the model's own.
        taxonomy: what was marked in `data`.
        matching: how completeness labels are made; None takes that of the run in `path`, else `original`.
        min_span_words: spans with fewer words are dropped, of categories that drop short ones; None takes that of the
            run in `path`, else the taxonomy's (5 for relevance).
        segmenter: `rules` or a spaCy pipeline; None takes the one of training.
        batch_size: inputs in one forward pass.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    path: ModelPath
    data: str
    output: str
    items: str | None = None
    kind: str | None = None
    taxonomy: Taxonomy = QA_FEEDBACK
    matching: Matching | None = None
    min_span_words: int | None = None
    segmenter: str | None = None
    batch_size: int = 32
    processes: ProcessConfig = ProcessConfig()

    def __post_init__(self) -> None:
        if self.kind is not None:
            kind_named(self.kind, kinds_of(self.taxonomy))
        if self.matching is not None:
            CompletenessConfig(self.matching)
        if self.batch_size < 1 or (self.min_span_words is not None and self.min_span_words < 0):
            raise ConfigError("need batch_size >= 1 and min_span_words >= 0")

    def run(self) -> TrustReport:
        """Measure; the main process writes the report and prints it as a table.

        Raises:
            ModelError: no readable reward model.
            DataError: broken feedback, or no record has a label for this kind of model; nothing is written then.
        """
        processes = Processes(self.processes)
        kinds = kinds_of(self.taxonomy)
        default = None if self.kind is None else RewardModelRecord.of(kind_named(self.kind, kinds))
        model = load_reward_model(self.path, default).to(processes.device)
        report, items = self._measure(model, processes)
        if processes.is_main:
            if self.items is not None:
                write_judged_records(self.items, items)
            values = report.to_json(self.data)
            write_json(self.output, values)
            print(f"{trust_page(values)}\nreport: {self.output}")
        return report

    def _measure(self, model: RewardModel, processes: Processes) -> tuple[TrustReport, list[JudgedRecord]]:
        settings = self._settings(model.record.definition)
        segmenter = SpacySegmenter(self.segmenter or model.record.named_segmenter)
        records = read_feedback(self.data, self.taxonomy)
        try:
            examples = build_examples(records, settings, model.input_encoder(), segmenter)
        except DataError as error:
            raise error.at(file=self.data) from None
        if not examples:
            raise DataError(
                f"no record gives a {settings.kind.name} label to compare with ({len(records)} read)", file=self.data
            )
        texts = marked_texts(records, settings, segmenter)
        judgements = judge_examples(model, examples, self.batch_size, processes)
        items = judged_records(examples, texts, judgements)
        return trust_of(settings.kind.name, examples, texts, judgements), items

    def _settings(self, kind: Kind) -> LabelSettings:
        """How labels are made: as told, else as the run in `path` made them, else as the original code does."""
        run = RunDirectory(self.path)
        config = run.read_config() if run.config_path.is_file() else {}
        matching = self.matching or config.get("completeness", {}).get("matching", "original")
        words = self.min_span_words
        if words is None:
            words = config.get("reward_model", {}).get("min_span_words")
        if isinstance(kind, SegmentKind):
            kind = kind.with_min_words(words)
        elif kind.name in kinds_of(self.taxonomy):
            kind = kinds_of(self.taxonomy)[kind.name]
        return LabelSettings(kind, CompletenessConfig(matching).matching)


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
