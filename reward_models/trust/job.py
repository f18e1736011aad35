"""Measuring a reward model, or a judge behind an endpoint, against people's labels.

What `finegrained evaluate-reward-model` and `finegrained evaluate-judge` build and run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, at_least, harmless
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.tables import cell, markdown_table
from reward_models.kinds import kind_named, kinds_of
from reward_models.pairs import CompletenessConfig, Matching

if TYPE_CHECKING:
    from reward_models.trust.measure import TrustReport
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter
from reward_models.kinds import SegmentKind


@dataclass(frozen=True)
class EvaluateRewardModel(Settings):
    """Measure a reward model against people's labels on any feedback file.

    Attributes:
        path: directory of the model or of the run that trained it, or a Hub name.
        data: feedback file; best one that the model did not learn from.
        output: JSON file for the report.
        items: JSON-lines file for what the model said of each record (`trust/items.py`); None writes none.
        kind: of a model made elsewhere, which says nothing of itself, or which component of a bottleneck; None takes
            the model's own.
        taxonomy: what was marked in `data`.
        matching: how completeness labels are made; None takes that of the run in `path`, else `original`.
        min_span_words: spans with fewer words are dropped, of categories that drop short ones; None takes that of the
            run in `path`, else the taxonomy's (5 for relevance).
        segmenter: `rules` or a spaCy pipeline; None takes the one of training.
        prefixes: judge each segment in the prefix of the answer that decides where it ends, or (False) in the whole
            answer; None takes the way of training.
        batch_size: inputs in one forward pass.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    path: ModelName
    data: InputFile
    output: OutputFile
    items: OutputFile | None = None
    kind: str | None = None
    taxonomy: Taxonomy = QA_FEEDBACK
    matching: Matching | None = None
    min_span_words: Annotated[int | None, at_least(0)] = None
    segmenter: str | None = None
    prefixes: bool | None = None
    batch_size: Annotated[int, at_least(1), harmless] = 32
    processes: ProcessConfig = ProcessConfig()

    def __post_init__(self) -> None:
        if self.kind is not None:
            kind_named(self.kind, kinds_of(self.taxonomy))
        if self.matching is not None:
            CompletenessConfig(self.matching)

    def run(self) -> TrustReport:
        """Measure; the main process writes the report and prints it as a table.

        Raises:
            ModelError: no readable reward model.
            DataError: broken feedback, or no record has a label for this kind of model; nothing is written then.
        """
        from reward_models.trust.evaluate import evaluate_reward_model

        return evaluate_reward_model(self)


@runtime_checkable
class JudgesSegments(Protocol):
    """A judge, or another reward that gives each segment of an answer a value from −1 (an error) to 1."""

    def setup(self, device: Any) -> None:
        """Load or open what it needs."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """The values of the segments of R responses."""


@dataclass(frozen=True)
class EvaluateJudge(Settings):
    """Let judges read the marked answers of a feedback file, and hold what they say against people's marks.

    Attributes:
        scorers: the judge of each category of the feedback, as a reward has it; of several samples (`Judge.samples`) a
            segment's probability of an error is the share that marks it.
        data: feedback file.
        output: JSON file for the report.
        taxonomy: what was marked in `data`.
        records: use at most so many, from the beginning of the file; None uses all.
        segmenter: that cuts answers for the labels; the scorers' own must cut alike.
    """

    scorers: Mapping[str, JudgesSegments]
    data: InputFile
    output: OutputFile
    taxonomy: Taxonomy = QA_FEEDBACK
    records: Annotated[int | None, at_least(1)] = None
    segmenter: str = DEFAULT_SEGMENTER

    def __post_init__(self) -> None:
        if not self.scorers:
            raise ConfigError("scorers: name a judge for one category or more")
        for name, scorer in self.scorers.items():
            if not isinstance(kind_named(name, kinds_of(self.taxonomy)), SegmentKind):
                raise ConfigError(f"scorers.{name}: a judge marks segments, and {name} is of whole answers")
            if not isinstance(scorer, JudgesSegments):
                raise ConfigError(f"scorers.{name}: {type(scorer).__name__} has no setup() and score()")

    def run(self) -> dict[str, Any]:
        """Judge, write the report and print it as tables.

        Returns:
            `data`, and by category (`categories`) what `trust.json` has, `unscored` (answers without a judgement),
            `outcomes` (of a judge behind an endpoint: read, refused, unreadable, failed, unlocated, split) and
            `spread`: the standard deviation of a segment's ±1 over samples, mean over segments.

        Raises:
            ConfigError: a scorer cuts answers otherwise than the labels.
            DataError: broken feedback, no marked answer, or none that has a judgement.
            FineGrainedError: the endpoint gives no answer.
        """
        records = read_feedback(self.data, self.taxonomy)[: self.records]
        categories = {name: self._measure(name, scorer, records) for name, scorer in self.scorers.items()}
        report = {"data": str(self.data), "categories": categories}
        write_json(self.output, report)
        print("\n".join(judge_part(values) for values in categories.values()))
        print(f"report: {self.output}")
        return report

    def _measure(self, name: str, scorer: JudgesSegments, records: Sequence[FeedbackRecord]) -> dict[str, Any]:
        from reward_models.data.examples import LabelSettings
        from reward_models.trust.judging import SegmentVerdicts, marked_texts
        from reward_models.trust.measure import segment_trust

        settings, segmenter = LabelSettings(kind_named(name, kinds_of(self.taxonomy))), shared_segmenter(self.segmenter)
        texts, prompts = [], []
        for record in records:
            marked = marked_texts([record], settings, segmenter) or []
            texts += marked
            prompts += [Prompt(record.id, "", (), vars(record))] * len(marked)
        if not texts:
            raise DataError(f"no record gives a {name} label to compare with ({len(records)} read)", file=self.data)
        scorer.setup("cpu")
        scores = scorer.score(prompts, [text.text for text in texts])
        read = [row for row in range(len(texts)) if row not in scores.unscored]
        outcomes = {outcome: int(count) for outcome, count in scores.counts.items() if count}
        if not read:
            raise DataError(f"no answer has a judgement of {name}: {outcomes}", file=self.data)
        odd = [prompts[row].id for row in read if tuple(scores.spans[row]) != texts[row].segments.spans]
        if odd:
            raise ConfigError(f"scorers.{name} cuts the answer of {odd[0]} otherwise than segmenter={self.segmenter}")
        values, least = [scores.values[row] for row in read], getattr(scorer, "error_free_from", 0.0)
        verdicts = [SegmentVerdicts(tuple((1 - v) / 2 for v in of), tuple(v < least for v in of)) for of in values]
        trust = segment_trust(name, [texts[row] for row in read], verdicts).to_json(str(self.data))
        spread = fmean(math.sqrt(max(1 - v * v, 0.0)) for of in values for v in of)
        return {**trust, "unscored": len(texts) - len(read), "outcomes": outcomes, "spread": spread}


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


def judge_part(values: Mapping[str, Any]) -> str:
    """What a judge said of a category, as Markdown."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in values["outcomes"].items())
    return (
        f"{trust_page(values)}\n{values['unscored']} answers without a judgement ({outcomes}); spread of a segment's "
        f"±1 over samples {values['spread']:.3f}\n"
    )
