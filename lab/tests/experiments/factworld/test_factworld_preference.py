"""How well preferences can be learnt: the ceiling by hand and by drawing, agreement, and the table on tiny models."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import tables_toy as toy

from finegrained_lab.experiments.factworld.preference.table import (
    CUES,
    PreferenceModelsTable,
    agreement,
    ceiling,
    error_counts,
    judged_gaps,
    pair_gaps,
)
from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.factworld.annotate import AnnotateFactWorld, mislabel, prefer
from finegrained_rlhf.factworld.oracle import Judgement, judge_outputs
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.models.tiny import MakeTinyModels
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.job import MakeTinyRewardModels
from reward_models.scorers import SegmentScorer, SequenceScorer

MISSING = "The city of Arlo is Rome."
ANSWERS = (toy.GOOD, toy.WRONG, toy.SHORT, MISSING)


def record(key: str = "a") -> OutputRecord:
    return OutputRecord(key, toy.QUESTION, (toy.PASSAGE,), (toy.GOOD,), "text", ANSWERS)


@pytest.fixture(scope="module")
def judged() -> list[Judgement]:
    return judge_outputs(record(), SpacySegmenter())


def test_error_counts_by_hand(judged: list[Judgement]) -> None:
    """SHORT: one clean sub-sentence and sentence, one fact given and one missing."""
    counts = error_counts(judged[2], 1.0)
    assert len(counts) == 5 and counts.sum() == pytest.approx(1.0)
    assert counts[0] == pytest.approx(0.83 * 0.92 * 0.85 * 0.15)
    assert counts[4] == pytest.approx(0.17 * 0.08 * 0.15 * 0.85)
    assert counts @ np.arange(5) == pytest.approx(0.17 + 0.08 + 0.15 + 0.85)
    for judgement in judged:
        assert error_counts(judgement, 0.0)[judgement.errors] == 1.0


@pytest.mark.parametrize("answer", range(4))
def test_error_counts_are_those_of_the_annotator(judged: list[Judgement], answer: int) -> None:
    draws, rng = 3000, random.Random(0)
    counts = error_counts(judged[answer], 1.0)
    drawn = np.bincount([mislabel(judged[answer], 1.0, rng).errors for _ in range(draws)], minlength=len(counts))
    error = np.sqrt(counts * (1 - counts) / draws)
    assert len(drawn) == len(counts) and (np.abs(drawn / draws - counts) <= 4 * error + 1e-3).all()


def test_the_ceiling_knows_errors_first_and_then_the_length(judged: list[Judgement]) -> None:
    good, wrong, short, missing = judged
    assert [judgement.errors for judgement in judged] == [0, 2, 1, 1]
    best = ceiling(1.0)
    assert best(good, wrong) > 0 > best(wrong, good) and best(good, wrong) == pytest.approx(-best(wrong, good))
    assert best(short, missing) == 0.0  # alike in all that is judged
    assert best(good, short) > 0
    longer = judge_outputs(
        OutputRecord("b", toy.QUESTION, (toy.PASSAGE,), (), "", (f"{toy.SHORT} {toy.SHORT}", MISSING)), SpacySegmenter()
    )
    assert [judgement.errors for judgement in longer] == [2, 1] and best(*longer) < 0
    assert ceiling(0.0)(good, wrong) == 1.0  # an annotator without a mistake: the oracle


def test_cues_by_hand(judged: list[Judgement]) -> None:
    good, wrong, short, _ = judged
    assert CUES["shorter"](good, short) < 0 < CUES["shorter"](short, good)
    assert CUES["fewer_sentences"](good, wrong) == 0 and CUES["fewer_sub_sentences"](good, wrong) == 1
    assert CUES["oracle"](good, wrong) == 2
    assert judged_gaps(judged, CUES["oracle"]) == (2, 1, 1, -1, -1, 0)
    assert agreement([judged_gaps(judged, CUES["oracle"])], [prefer(judged)]) == 1.0


def test_agreement_leaves_ties_out_and_counts_no_order_as_a_coin() -> None:
    assert pair_gaps([3.0, 1.0, 1.0, 4.0]) == (2.0, 2.0, -1.0, 0.0, -3.0, -3.0)
    # right, tied by the annotator, wrong, no order, right, wrong
    assert agreement([(2.0, 2.0, -1.0, 0.0, -3.0, -3.0)], [(1, 0, 1, 2, 2, 1)]) == pytest.approx(2.5 / 5)
    with pytest.raises(ValueError, match="no pair is decided"):
        agreement([(1.0,) * 6], [(0,) * 6])


def test_the_table_of_tiny_models(tmp_path: Path) -> None:
    roots = {}
    for seed in (1, 2):
        roots[seed] = root = toy.write_seed(tmp_path / f"seed_{seed}", seed)
        write_outputs(root / "outputs_dev.jsonl", [record(f"{i}") for i in range(6)])
        AnnotateFactWorld(str(root / "outputs_dev.jsonl"), str(root / "feedback_dev.json"), seed=seed).run()
        (root / "words.txt").write_text(" ".join([toy.QUESTION, *ANSWERS, *toy.PASSAGE.sentences]), encoding="utf-8")
        MakeTinyModels(str(root / "words.txt"), str(root / "models"), seed=seed).run()
        MakeTinyRewardModels(str(root / "models" / "longformer"), str(root / "made"), seed=seed).run()
        for kind in ("relevance", "factuality", "completeness", "preference"):
            run = root / "reward_models" / kind
            (root / "made" / kind).rename(run / "model")
    output = tmp_path / "results" / "models.json"
    made = PreferenceModelsTable(
        str(output),
        "python …",
        str(tmp_path),
        [1, 2],
        chosen="On dev.",
        models={"tiny": "reward_models/preference"},
        segment_model=SegmentScorer,
        answer_model=SequenceScorer,
    ).run()
    assert read_json(output)["rows"] == made["rows"]
    systems = ["tiny", "three_models", *CUES, "ceiling"]
    assert [row["system"] for row in made["rows"]] == [name for name in systems for _ in roots]
    for row in made["rows"]:
        assert 0 <= row["dev_pairs"] <= 1 and (row["score_std"] is not None) == (row["system"] == "tiny")
        assert row["true_pairs"] == 1.0 or row["system"] not in ("oracle", "ceiling")
    page = output.with_suffix(".md").read_text(encoding="utf-8")
    assert "## Difference from tiny" in page and "## Standard deviation of the raw scores" in page


def test_the_grid_takes_the_best_mean_of_the_points_that_all_seeds_have(tmp_path: Path) -> None:
    from finegrained_lab.experiments.factworld import FactWorldGrid
    from finegrained_rlhf.core.errors import DataError

    errors = {(0, 1e-4): 0.1, (0, 3e-5): 0.3, (1, 1e-4): 0.4, (1, 3e-5): 0.1, (0, 1e-3): 0.0}
    for (seed, lr), error in errors.items():
        grid = tmp_path / f"seed_{seed}" / "grid"
        run = f"preference_rlhf_lr{lr}_beta0.1"
        toy.write_run(grid, run, [0.5, error])
        toy.write_settings(grid / run, seed, optimizer={"lr": lr}, ppo={"kl": {"beta": 0.1}})
        write_jsonl(grid / run / "metrics.jsonl", [{"step": 5, "kl": 1.0}])
    job = FactWorldGrid(
        str(tmp_path / "grid.json"), "python …", str(tmp_path / "seed_{seed}" / "grid"), [0, 1], chosen="On dev."
    )
    result = job.run()
    assert result["summary"] == {"preference_rlhf": {"lr": 3e-5, "beta": 0.1}}
    means = {point["lr"]: point["mean_error"] for point in result["points"]}
    assert means == {1e-4: pytest.approx(0.25), 3e-5: pytest.approx(0.2)}
    page = (tmp_path / "grid.md").read_text(encoding="utf-8")
    assert "Mean over seeds" in page and "preference_rlhf: lr 3e-05, β 0.1" in page
    alone = FactWorldGrid(str(tmp_path / "one.json"), "python …", str(tmp_path / "seed_0" / "grid"), [0], chosen="x")
    assert alone.run()["summary"] == {"preference_rlhf": {"lr": 1e-3, "beta": 0.1}}
    (tmp_path / "seed_2" / "grid").mkdir(parents=True)
    with pytest.raises(DataError, match="no runs of a grid"):
        FactWorldGrid(str(tmp_path / "x.json"), "", str(tmp_path / "seed_{seed}" / "grid"), [0, 2], chosen="x").run()
