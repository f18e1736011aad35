"""Measuring a judge behind an endpoint against marks of people: what `finegrained evaluate-judge` builds and runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Protocol, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile, at_least
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter
from reward_models.kinds import SegmentKind, kind_named, kinds_of


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
        from reward_models.trust.judging import SegmentVerdicts
        from reward_models.trust.measure import marked_texts, segment_trust

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


def judge_part(values: Mapping[str, Any]) -> str:
    """What a judge said of a category, as Markdown."""
    from reward_models.trust.evaluate import trust_page

    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in values["outcomes"].items())
    return (
        f"{trust_page(values)}\n{values['unscored']} answers without a judgement ({outcomes}); spread of a segment's "
        f"±1 over samples {values['spread']:.3f}\n"
    )
