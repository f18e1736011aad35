"""Revision mass by hand: a scorer that reads on is found out, one that reads no further has none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from finegrained_lab.experiments.revisions import CountsScorer, MeasureRevisions, PrefixModelsTable, RevisionsTable
from finegrained_lab.experiments.revisions.measure import revisions, shares
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.rewards.protocol import BaseScorer
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.trust.items import JudgedRecord, write_judged_records

TEXT = "It is one. It is two. It is three."
SEGMENTER = SpacySegmenter()


class Says(BaseScorer):
    """−1 for each sentence where the text behind its scope holds a word, else +1; the scope reads on or does not."""

    look_ahead = SEGMENTER.look_ahead("sentence")

    def __init__(self, word: str, reads_on: bool = True) -> None:
        self.word, self.reads_on = word, reads_on

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """By the whole text, or by the sentence alone."""
        spans = [tuple(SEGMENTER.sentences(text)) for text in responses]
        values = [
            tuple(-1.0 if self.word in (text if self.reads_on else text[a:b]) else 1.0 for a, b in of)
            for text, of in zip(responses, spans, strict=True)
        ]
        return SegmentScores(tuple(spans), tuple(values))


class Length(BaseScorer):
    """The words of a whole answer."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """One value each."""
        return SegmentScores(
            tuple(((0, len(text)),) for text in responses),
            tuple((float(len(text.split())),) for text in responses),
            whole_response=True,
        )


def prompt() -> Prompt:
    return Prompt("p", "q", (0,))


def test_a_word_at_the_end_turns_what_was_said_before() -> None:
    """Up to their ends the first two sentences had +1. Two further words, "It is", do not show the third one's word."""
    [row] = revisions(Says("three"), [prompt()], [TEXT])
    assert (row.segments, row.early, row.seen, row.moved, row.broken) == (3, 2, 2, 0, 0)
    assert (row.whole, row.at_end, row.decided) == (3.0, 4.0, 4.0)
    [early] = revisions(Says("two"), [prompt()], [TEXT])
    assert (early.at_end, early.decided) == (2.0, 2.0)
    [local] = revisions(Says("two", reads_on=False), [prompt()], [TEXT])
    assert (local.whole, local.at_end, local.decided) == (3.0, 0.0, 0.0)


def test_a_segment_that_is_not_there_yet_has_moved() -> None:
    """Five words behind the first comma do not show that a sub-sentence ends there; the sixth does."""

    class Pieces(BaseScorer):
        look_ahead = SEGMENTER.look_ahead("sub_sentence")

        def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
            spans = [tuple(SEGMENTER.sub_sentences(text)) for text in responses]
            return SegmentScores(tuple(spans), tuple((1.0,) * len(of) for of in spans))

    text = "It is the good word one, two three four five six, 7 8 9 10 11 12 and the last one."
    [row] = revisions(Pieces(), [prompt()], [text])
    assert (row.segments, row.seen, row.moved, row.at_end) == (3, 2, 1, 1.0)
    assert (row.early, row.broken, row.decided) == (1, 0, 0.0)


def answers(path: Path) -> Path:
    rows = [OutputRecord(f"q{i}", "Which?", (), (), "t", (TEXT, "It is two.")) for i in range(4)]
    write_outputs(path / "outputs.jsonl", rows)
    return path / "outputs.jsonl"


def test_tables_follow_from_the_rows(tmp_path: Path) -> None:
    file, seed = answers(tmp_path), tmp_path / "seed_0"
    for name, scorer in {"relevance": Says("three"), "factuality": Says("two", reads_on=False)}.items():
        output = seed / "revisions" / f"reward_models_{name}.jsonl"
        rows = MeasureRevisions(scorer, str(file), str(output)).run()
        assert len(rows) == 4 and rows[0].segments == 4
    MeasureRevisions(Length(), str(file), str(seed / "revisions" / "reward_models_completeness.jsonl"), 1).run()
    of_answers = json.loads((seed / "revisions" / "reward_models_completeness.jsonl").read_text().splitlines()[0])
    assert (of_answers["readings"], of_answers["answer"], of_answers["apart"]) == (2, 18.0, 9.0)  # 9, less 3 and 6
    assert shares(of_answers)["answer_apart"] == 0.5
    made = RevisionsTable(str(tmp_path / "out.json"), "x", {"World": str(tmp_path)}, str(seed), chosen="Nothing.").run()
    assert made["reward_mass"]["mean"] == pytest.approx(4 / 8) and (tmp_path / "out.svg").is_file()
    page = (tmp_path / "out.md").read_text()
    assert (
        "above the 5%" in page and "| World (1 seed) | encoder | relevance  | 16       | 1.000 [1.000, 1.000]" in page
    )


def test_accuracy_by_place(tmp_path: Path) -> None:
    truth = (True, False, False, True, True)
    said = {"whole": truth, "late": (False, False, False, True, True)}
    for models, prefixes, claims in (
        ("reward_models", "false", "whole"),
        ("reward_models", "true", "late"),
        ("prefix_models", "false", "late"),
        ("prefix_models", "true", "whole"),
    ):
        (tmp_path / "seed_3" / "judged").mkdir(parents=True, exist_ok=True)
        rows = [JudgedRecord(f"r{i}", truth, (0.5,) * 5, said[claims]) for i in range(5)]
        write_judged_records(tmp_path / "seed_3" / "judged" / f"{models}_relevance_{prefixes}.jsonl", rows)
    made = PrefixModelsTable(str(tmp_path / "out.json"), "x", {"World": str(tmp_path)}, chosen="Nothing.").run()
    by = {(row["trained"], row["read"]): row["places"] for row in made["rows"]}
    assert by["whole", "prefixes"]["1"]["mean"] == 0.0 and by["whole", "prefixes"]["all"]["mean"] == 0.8
    assert by["whole", "prefixes"]["1"]["less_whole"] == -1.0 and by["prefixes", "prefixes"]["1"]["mean"] == 1.0
    assert by["whole", "whole"]["4 and later"]["labels"] == 10


def test_word_features_see_only_what_is_counted(tmp_path: Path) -> None:
    from feedback_samples import record

    from finegrained_rlhf.feedback.reading import write_feedback

    marked = [
        record(f"The lake is {word}. It is cold there.", [(f"The lake is {word}.", "Unverifiable")], name=f"r{i}")
        for i, word in enumerate(["green", "wide", "deep", "blue", "full", "odd", "old", "new"])
    ]
    write_feedback(tmp_path / "feedback.json", marked)
    scorer = CountsScorer("factuality", str(tmp_path / "feedback.json"))
    scorer.setup()
    one = marked[0]
    asked = Prompt("p", "q", (0,), {"question": one.question, "passages": one.passages})
    scores = scorer.score([asked, asked], [one.predictions[0], ""])
    assert scores.spans[0] == tuple(SEGMENTER.sentences(one.predictions[0])) and scores.values[1] == ()
    assert set(scores.values[0]) <= {1.0, -1.0}
