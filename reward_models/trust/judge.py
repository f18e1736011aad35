"""Measuring a judge behind an endpoint against marks of people: what `finegrained evaluate-judge` builds and runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, cast, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile, at_least
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.rewards.judge import Judge
from finegrained_rlhf.rewards.judged import JudgeScorer
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Granularity, shared_segmenter
from reward_models.data.examples import LabelSettings
from reward_models.kinds import SegmentKind, kind_named, kinds_of
from reward_models.trust.evaluate import trust_page
from reward_models.trust.judging import SegmentVerdicts
from reward_models.trust.measure import marked_texts, segment_trust


@dataclass(frozen=True)
class EvaluateJudge(Settings):
    """Let a judge read the marked answers of a feedback file, and hold what it says against people's marks.

    Attributes:
        judge: that reads the answers; with `samples` above 1 a segment's probability is the share that marks it.
        data: feedback file.
        output: JSON file for the report.
        counts: the judge's kinds of error that stand for each category of the feedback.
        taxonomy: what was marked in `data`.
        records: use at most so many, from the beginning of the file; None uses all.
        segmenter: that cuts answers.
    """

    judge: Judge
    data: InputFile
    output: OutputFile
    counts: Mapping[str, Sequence[str]]
    taxonomy: Taxonomy = QA_FEEDBACK
    records: Annotated[int | None, at_least(1)] = None
    segmenter: str = DEFAULT_SEGMENTER

    def __post_init__(self) -> None:
        if not self.counts:
            raise ConfigError("counts: name the judge's kinds of error for one category or more")
        for name in self.counts:
            kind = kind_named(name, kinds_of(self.taxonomy))
            if not isinstance(kind, SegmentKind) or kind.density not in get_args(Granularity):
                raise ConfigError(f"counts.{name}: a judge marks sentences or sub-sentences, and {name} is of neither")

    def run(self) -> dict[str, Any]:
        """Judge, write the report and print it as tables.

        Returns:
            `model`, `samples`, `data`, and by category (`categories`) what `trust.json` has, `outcomes` (answers that
            were read, refused, unreadable, failed, unlocated) and `spread`: the standard deviation of a segment's ±1
            over samples, mean over segments.

        Raises:
            DataError: broken feedback, no marked answer, or none that the judge gave a judgement of.
            FineGrainedError: the endpoint gives no answer.
        """
        records = read_feedback(self.data, self.taxonomy)[: self.records]
        categories = {name: self._measure(name, records) for name in self.counts}
        report = {
            "model": self.judge.model,
            "samples": self.judge.samples,
            "data": str(self.data),
            "categories": categories,
        }
        write_json(self.output, report)
        print("\n".join(judge_part(values, self.judge.samples) for values in categories.values()))
        print(f"report: {self.output}")
        return report

    def _measure(self, name: str, records: Sequence[FeedbackRecord]) -> dict[str, Any]:
        kind = kind_named(name, kinds_of(self.taxonomy))
        assert isinstance(kind, SegmentKind)
        granularity = cast(Granularity, kind.density)
        scorer = JudgeScorer(self.judge, self.counts[name], granularity, self.segmenter, failures=1.0)
        segmenter = shared_segmenter(self.segmenter)
        texts, prompts = [], []
        for record in records:
            marked = marked_texts([record], LabelSettings(kind), segmenter) or []
            texts += marked
            prompts += [Prompt(record.id, "", (), vars(record))] * len(marked)
        if not texts:
            raise DataError(f"no record gives a {name} label to compare with ({len(records)} read)", file=self.data)
        scorer.setup()
        scorer.check_prompts(prompts)
        scores = scorer.score(prompts, [text.text for text in texts])
        read = [row for row in range(len(texts)) if row not in scores.unscored]
        outcomes = {outcome: int(count) for outcome, count in scores.counts.items()}
        if not read:
            raise DataError(f"the judge {self.judge.model} gave no judgement of {name}: {outcomes}", file=self.data)
        values = [scores.values[row] for row in read]
        verdicts = [SegmentVerdicts(tuple((1 - v) / 2 for v in of), tuple(v < 0 for v in of)) for of in values]
        trust = segment_trust(name, [texts[row] for row in read], verdicts).to_json(str(self.data))
        spread = fmean(math.sqrt(max(1 - v * v, 0.0)) for of in values for v in of)
        return {**trust, "outcomes": outcomes, "spread": spread}


def judge_part(values: Mapping[str, Any], samples: int) -> str:
    """What a judge said of a category, as Markdown."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in values["outcomes"].items() if count)
    spread = f"; spread of a segment's ±1 over {samples} samples {values['spread']:.3f}" if samples > 1 else ""
    return f"{trust_page(values)}\nAnswers: {outcomes}{spread}\n"
