"""Word features alone as a scorer of segments: a logistic regression on counted words, without pretrained weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, look_ahead_of, shared_segmenter


@dataclass(frozen=True)
class CountsScorer(Settings):
    """+1 for each segment without an error, −1 for each with one, by the `counts` of the baselines.

    Attributes:
        kind: `relevance` or `factuality`; both see the passages here.
        data: feedback FILE that it is fitted to.
        segmenter: that cuts answers, in `data` and when scoring.
    """

    kind: str
    data: InputFile
    segmenter: str = DEFAULT_SEGMENTER

    def setup(self, device: Any = "cpu") -> None:
        """Fit the regression.

        Raises:
            ConfigError: the kind judges whole answers.
            DataError: broken feedback.
        """
        from finegrained_lab.experiments.qa_feedback.baselines import counted
        from finegrained_rlhf.feedback.reading import read_feedback
        from reward_models.encoders.counts import count_names
        from reward_models.kinds import SegmentKind, kind_named
        from reward_models.training.logistic import fit_counts

        kind, segmenter = kind_named(self.kind), shared_segmenter(self.segmenter)
        if not isinstance(kind, SegmentKind):
            raise ConfigError(f"kind: expected one that judges segments, got {self.kind}")
        seeing = replace(kind, reads_passages=True)
        items = [one.items for one in counted(kind, read_feedback(self.data), segmenter)]
        judge = fit_counts(items, range(len(count_names(seeing))), False)
        object.__setattr__(self, "_fitted", (seeing, segmenter, judge))
        object.__setattr__(self, "look_ahead", look_ahead_of(segmenter, seeing.density))  # type: ignore[arg-type]

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Values of the segments of R responses."""
        import numpy as np

        from reward_models.encoders.counts import word_counts
        from reward_models.parts import factuality_parts
        from reward_models.scorers import passages_of, question_of

        seeing, segmenter, judge = self._fitted  # type: ignore[attr-defined]
        spans, values = [], []
        for prompt, text in zip(prompts, responses, strict=True):
            cut = tuple(seeing.cut(text, segmenter))
            parts = factuality_parts(question_of(prompt), passages_of(prompt), [text[a:b] for a, b in cut])
            logits = judge.logits(np.array(word_counts(seeing, parts))) if cut else []
            spans.append(cut)
            values.append(tuple(-1.0 if logit > 0 else 1.0 for logit in logits))
        return SegmentScores(tuple(spans), tuple(values))
