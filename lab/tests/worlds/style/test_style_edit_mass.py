"""With perfect labels, words changed a segment rank drafts as their edits cost; marks of segments do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from finegrained_lab.experiments.personalization import RankDrafts
from finegrained_lab.worlds.style import MakeStyleWorld, StyleEditScorer
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.personalization.span_feedback import edit_errors
from finegrained_rlhf.rewards.protocol import BaseScorer, BegunScorer
from finegrained_rlhf.text.segmentation import shared_segmenter


class Marks(BaseScorer):
    """What perfect reward models of `reward=edits` would give: means of ±1 a segment, by kind."""

    def __init__(self, true: StyleEditScorer) -> None:
        self.true, self.segmenter = true, shared_segmenter("english")

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        values = []
        for prompt, draft in zip(prompts, responses, strict=True):
            errors, total = edit_errors(draft, self.true._edited(prompt, draft)), 0.0
            for kind in ("irrelevant", "wrong", "missing"):
                spans = self.segmenter.sentences(draft) if kind == "missing" else self.segmenter.sub_sentences(draft)
                hit = [any(e.error_type == kind and e.start < b and e.end > a for e in errors) for a, b in spans]
                total += sum(-1.0 if one else 1.0 for one in hit) / len(hit)
            values.append((total,))
        return SegmentScores([((0, len(text)),) for text in responses], values)


def test_edit_mass_ranks_drafts_as_their_edits_cost(tmp_path: Path) -> None:
    MakeStyleWorld(output_dir=str(tmp_path), seed=4711, contexts=20).run()
    files = {"contexts": str(tmp_path / "contexts.jsonl"), "preferences": str(tmp_path / "preferences.json")}
    true = StyleEditScorer([files["contexts"]], files["preferences"])
    assert isinstance(true, BegunScorer)
    scorers = {"mass": true, "marks": Marks(true)}
    ranked = RankDrafts(**files, output=str(tmp_path / "ranked.json"), scorers=scorers, drafts=8).run()
    mass, marks = ranked["scorers"]["mass"], ranked["scorers"]["marks"]
    assert mass["within"] == pytest.approx(1.0) and mass["over"] == pytest.approx(1.0)
    assert mass["best_of"] == ranked["best_cost"] < marks["best_of"] < ranked["mean_cost"] and marks["within"] < 0.5
    with pytest.raises(DataError, match="context"):
        true.score([Prompt("p", "", (), {"question": "another"})], ["a draft"])
