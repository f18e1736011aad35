"""Scores of segments by what a judge quotes: where a quote lies, what has none, and how many may have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import Outcome, OutcomeCounts
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.remote.judge import Judge, Judgement
from finegrained_rlhf.rewards.remote.quotes import spans_of
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, Span, shared_segmenter

if TYPE_CHECKING:
    import torch

Granularity = Literal["sub_sentence", "sentence"]
Unlocated = Literal["mask", "charge"]
UNLOCATED = "unlocated"


class JudgeScorer:
    """Scores segments by what a judge quotes: −1 where a quote of a kind that counts lies, 1 elsewhere.

    A response that has no judgement has no score. A quote is looked for word for word, then without case and marks,
    then by most of its words (`quotes`). An error that is reported and found nowhere is never taken for none: the
    response has no score (`mask`), or all of its segments have the error (`charge`). A quote that occurs several times
    is its first place, the same quote again the next one.

    Args:
        judge: that reads the answers.
        counts: the kinds of error that make a segment wrong; None counts all of the judge's.
        granularity: what a segment is.
        segmenter: `english`, `rules`, a spaCy pipeline, or a segmenter of one's own.
        failures: the share of the latest 500 responses that may have no score; beyond it, and beyond chance, the run
            ends (`OutcomeCounts`).
        unlocated: what becomes of a response with an error that is reported and not found.

    Raises:
        ConfigError: the granularity is unknown, a kind is none of the judge's, or a setting is outside its range.
    """

    counted = (*(outcome.value for outcome in Outcome), UNLOCATED)
    error_free_from = 0.0
    value_range = (-1.0, 1.0)

    def __init__(
        self,
        judge: Judge,
        counts: Sequence[str] | None = None,
        granularity: Granularity = "sentence",
        segmenter: str | Segmenter = DEFAULT_SEGMENTER,
        failures: float = 0.2,
        unlocated: Unlocated = "mask",
    ) -> None:
        if granularity not in get_args(Granularity):
            raise ConfigError(f"granularity must be {' or '.join(get_args(Granularity))}, got {granularity!r}")
        if unlocated not in get_args(Unlocated):
            raise ConfigError(f"unlocated must be {' or '.join(get_args(Unlocated))}, got {unlocated!r}")
        if unknown := sorted(set(counts or ()) - set(judge.taxonomy)):
            raise ConfigError(f"counts: the judge's taxonomy has {', '.join(judge.taxonomy)}, not {unknown[0]!r}")
        self.judge, self.counts = judge, frozenset(judge.taxonomy if counts is None else counts)
        self.granularity, self.unlocated = granularity, unlocated
        self.outcomes = OutcomeCounts(failures)
        self.quoted, self.unmatched = 0, 0
        self._segmenter = shared_segmenter(segmenter) if isinstance(segmenter, str) else segmenter

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Open the judge's file of kept quotes."""
        self.judge.open()

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that lack what the judge reads.

        Raises:
            DataError: there is one.
        """
        for prompt in prompts:
            self.judge.check(prompt)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score each segment of R responses; a response without a segment is not asked about.

        Raises:
            FineGrainedError: more responses have no score than may; or there is no endpoint.
        """
        cut = self._segmenter.sentences if self.granularity == "sentence" else self._segmenter.sub_sentences
        spans = [tuple(cut(response)) for response in responses]
        judged_rows = [i for i, row in enumerate(spans) if row]
        judged = self.judge.judgements([prompts[i] for i in judged_rows], [responses[i] for i in judged_rows])
        values: list[tuple[float, ...]] = [()] * len(responses)
        unscored: dict[int, str] = {}
        counted = dict.fromkeys(self.counted, 0.0)
        for i, judgement in zip(judged_rows, judged, strict=True):
            row = self._values(judgement, responses[i], spans[i])
            counted[judgement.outcome.value] += 1
            counted[UNLOCATED] += judgement.outcome is Outcome.READ and row is None
            if row is None and judgement.outcome is Outcome.READ and self.unlocated == "charge":
                row = (-1.0,) * len(spans[i])
            if row is None:
                unscored[i] = UNLOCATED if judgement.outcome is Outcome.READ else judgement.outcome.value
                spans[i] = ()
            values[i] = row or ()
        self.outcomes.add(unscored.get(i, Outcome.READ.value) for i in judged_rows)
        problems = [judgement.problem for judgement in judged if judgement.problem]
        self.outcomes.check(f"the judge {self.judge.model}", problems[-1] if problems else "")
        return SegmentScores(spans, values, unscored=frozenset(unscored), counts=counted)

    def _values(self, judgement: Judgement, text: str, segments: Sequence[Span]) -> tuple[float, ...] | None:
        """The value of each segment; None without a judgement, or where an error of it lies in no segment."""
        if judgement.outcome is not Outcome.READ:
            return None
        quotes = [quote for quote, kind in judgement.quotes if kind in self.counts]
        wrong, missed = set[int](), 0
        for span in spans_of(quotes, text):
            hit = [] if span is None else [n for n, (a, b) in enumerate(segments) if span[0] < b and a < span[1]]
            wrong.update(hit)
            missed += not hit
        self.quoted, self.unmatched = self.quoted + len(quotes), self.unmatched + missed
        return None if missed else tuple(-1.0 if n in wrong else 1.0 for n in range(len(segments)))
