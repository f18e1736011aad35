"""Rows from evaluated answers to the test questions: what reward models say, and what the oracle knows.

Reads `evaluation/SYSTEM.json` and `evaluation/SYSTEM.outputs.jsonl` of a seed. Judges answers with the oracle where the
evaluation keeps no such number: errors by sub-sentence, and pairs of answers. Runs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.factworld.oracle import Judgement, judge_outputs
from finegrained_rlhf.factworld.report import RATES, mean_error
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.text.segmentation import SpacySegmenter

Judged = Mapping[str, Judgement]

REWARDS = {
    "rel_reward": "reward/relevance/error_free_share",
    "fact_reward": "reward/factuality/error_free_share",
    "comp_reward": "reward/completeness/mean_score",
}
"""The thesis's automatic scores (table 6.3): share of sub-sentences, of sentences, that the reward model finds free of
error, and the mean score for completeness; by the name of the evaluation's metric."""
TRUTH = (*RATES, "mean_error")
TEST_COLUMNS = (*TRUTH, *REWARDS, "rouge_lsum", "mean_tokens")

MEASURES: Mapping[str, Callable[[Judgement], int]] = {
    "completeness": lambda judgement: sum(judgement.given),
    "errors": lambda judgement: -judgement.errors,
}
"""What two answers to a question are compared by; more is better. `completeness`: asked facts given; `errors`:
sub-sentences with a C1 error, sentences with a C2 error and missing facts, fewer of them."""
OUTCOMES = ("win", "tie", "lose")
"""Of a comparison of two answers."""


def evaluation_path(root: Path, system: str) -> Path:
    """Where a seed's evaluation of a system lies."""
    return root / "evaluation" / f"{system}.json"


def evaluated_row(root: Path, system: str, seed: int) -> dict[str, Any]:
    """One system's answers to the test questions, measured.

    Raises:
        DataError: the evaluation is missing, or was made without reward models or oracle.
    """
    path = evaluation_path(root, system)
    measured = read_json(path)
    names = {**{name: name for name in (*RATES, "correct_share", "rouge_lsum", "mean_tokens")}, **REWARDS}
    for field in names.values():
        if field not in measured:
            raise DataError("missing: evaluate with reward=… and oracle=factworld", file=path, field=field)
    row = {"system": system, "seed": seed, "questions": measured["examples"]}
    row |= {name: measured[field] for name, field in names.items()}
    return row | {"mean_error": mean_error(measured)}


def read_judged(root: Path, system: str) -> dict[str, Judgement]:
    """The oracle's judgement of each of a system's answers, by the question's id.

    Raises:
        DataError: the outputs are missing, or a question does not follow the world's grammar.
    """
    path = evaluation_path(root, system).with_suffix(".outputs.jsonl")
    segmenter = SpacySegmenter()
    try:
        return {record.id: judge_outputs(record, segmenter)[0] for record in read_outputs(path)}
    except DataError as error:
        raise error.at(file=path) from None


def factual_error_by_sub_sentence(judged: Judged) -> float:
    """Sub-sentences with a C2 error, of all but those whose only error is C1, as in figure 6.3; 0 where none counts.

    (`factual_error_rate` counts sentences. The relevance error rate is by sub-sentence in both.)
    """
    pieces = [piece for judgement in judged.values() for piece in judgement.sub_sentences]
    counted = [piece for piece in pieces if piece.c1 is None or piece.c2 is not None]
    return sum(piece.c2 is not None for piece in counted) / max(len(counted), 1)


def win_tie_lose(ours: Judged, theirs: Judged, measure: Callable[[Judgement], int]) -> dict[str, float]:
    """Shares of the questions on which our answer is better, as good and worse than theirs.

    Raises:
        DataError: the two did not answer the same questions, or none.
    """
    if not ours or ours.keys() != theirs.keys():
        raise DataError(f"two systems to compare answered {len(ours)} and {len(theirs)} questions, not the same ones")
    gaps = [measure(ours[key]) - measure(theirs[key]) for key in ours]
    counts = (sum(gap > 0 for gap in gaps), sum(gap == 0 for gap in gaps), sum(gap < 0 for gap in gaps))
    return {outcome: count / len(gaps) for outcome, count in zip(OUTCOMES, counts, strict=True)}
