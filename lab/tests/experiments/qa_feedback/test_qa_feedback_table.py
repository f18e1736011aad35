"""The cross-validation's table: metrics against the report of one model, intervals, baselines, and a table on disk."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feedback_samples import LAKE, record

from finegrained_lab.experiments.qa_feedback.baselines import BASELINES, baseline, counted
from finegrained_lab.experiments.qa_feedback.folds import fold_models
from finegrained_lab.experiments.qa_feedback.reward_models import RewardModelsTable
from finegrained_lab.experiments.qa_feedback.scores import difference, measure
from finegrained_lab.experiments.qa_feedback.split import SplitFeedback
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.kinds import COMPLETENESS, FACTUALITY, PREFERENCE, RELEVANCE
from reward_models.trust.items import JudgedRecord, write_judged_records

WRONG = "The moon is made of green cheese."


def feedback(count: int) -> list[FeedbackRecord]:
    """Sentences that are not in the passages have errors; the longer answer is better."""
    generator = np.random.default_rng(0)
    found = []
    for i in range(count):
        right = [LAKE.sentences[int(j)] for j in generator.permutation(3)[: int(generator.integers(1, 4))]]
        wrong = [WRONG] * int(generator.integers(0, 2))
        marks = [(WRONG, kind) for kind in ("Unverifiable",) for _ in wrong]
        one = record(
            " ".join([*right, *wrong]),
            marks,
            others=(
                "It is cold.",
                "It is cold and wide and deep there.",
                "It is cold and wide there, and deep, and long.",
            ),
            correction=" ".join(LAKE.sentences),
            preferences=(0, 0, 0, 2, 2, 2),
            name=f"r{i}",
        )
        found.append(replace(one, question=f"What is lake {i} like?"))
    return found


def test_metrics_by_hand() -> None:
    records = [
        JudgedRecord("a", (True, False), (0.95, 0.15), (True, False), found=1, annotated=1, right=1, claimed=1),
        JudgedRecord(
            "b", (True, False, False), (0.35, 0.65, 0.15), (False, True, False), found=0, annotated=1, claimed=1
        ),
    ]
    found = {name: value.value for name, value in measure(records, "segment").items()}
    assert found["accuracy"] == pytest.approx(3 / 5) and found["f1_has_error"] == pytest.approx(1 / 2)
    assert found["balanced_accuracy"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert (found["span_precision"], found["span_recall"], found["span_f1"]) == (0.5, 0.5, 0.5)
    # bins: .95 came true, .35 came true, .65 did not, .15 twice did not
    assert found["ece"] == pytest.approx((0.05 + 0.65 + 0.65 + 0.3) / 5)
    pairs = {
        n: v.value
        for n, v in measure([JudgedRecord("a", gaps=(1.0, -0.5)), JudgedRecord("b", gaps=(0.0,))], "sequence").items()
    }
    assert pairs["pair_accuracy"] == pytest.approx(1 / 3)


def test_intervals_narrow_with_the_number_of_questions_and_pairs_are_compared_on_the_same_ones() -> None:
    generator = np.random.default_rng(0)
    rows = [JudgedRecord(f"r{i}", gaps=tuple(generator.normal(0.3, 1, size=3).tolist())) for i in range(400)]
    few, many = (measure(rows[:n], "sequence")["pair_accuracy"] for n in (40, 400))
    assert many.high - many.low < (few.high - few.low) / 2 and many.low < many.value < many.high
    share = many.value
    assert many.high - many.low == pytest.approx(2 * 1.96 * np.sqrt(share * (1 - share) / 1200), rel=0.15)
    better = [replace(row, gaps=tuple(gap + 0.4 for gap in row.gaps)) for row in rows]
    paired = difference(better[100:], rows, "sequence", "pair_accuracy")
    assert 0 < paired.low < paired.value < paired.high and paired.high - paired.low < many.high - many.low + 0.02
    same = difference(rows, rows, "sequence", "pair_accuracy")
    assert (same.value, same.low, same.high) == (0, 0, 0)
    with pytest.raises(ValueError, match="no record in common"):
        difference(rows[:1], rows[1:], "sequence", "pair_accuracy")


def test_baselines_find_what_counting_can_and_majority_nothing() -> None:
    segmenter = SpacySegmenter("rules")
    records = feedback(40)
    train, test = (counted(FACTUALITY, part, segmenter) for part in (records[:30], records[30:]))
    found = {name: measure(baseline(name, FACTUALITY, train, test), "segment") for name in BASELINES}
    assert found["overlap"]["balanced_accuracy"].value == found["counts"]["balanced_accuracy"].value == 1.0
    assert found["majority"]["balanced_accuracy"].value == 0.5
    train, test = (counted(PREFERENCE, part, segmenter) for part in (records[:30], records[30:]))
    assert measure(baseline("length", PREFERENCE, train, test), "sequence")["pair_accuracy"].value == 1.0
    with pytest.raises(ValueError, match="neither is the more frequent"):
        baseline("majority", PREFERENCE, train, test)
    assert counted(COMPLETENESS, records, segmenter) and not counted(RELEVANCE, [], segmenter)


def run_of(directory: Path, rows: list[JudgedRecord]) -> None:
    """A finished run as the table sees it."""
    directory.mkdir(parents=True)
    (directory / "metrics.json").write_text("{}")
    (directory / "config.yaml").write_text("reward_model: {kind: preference}\nseed: 0\n")
    (directory / "metrics.jsonl").write_text(json.dumps({"step": 1, "time/step_s": 2.0}) + "\n")
    write_judged_records(directory / "judged.jsonl", rows)


def test_a_table_from_what_models_said(tmp_path: Path) -> None:
    write_feedback(tmp_path / "all.json", feedback(30))
    cv = tmp_path / "cv"
    folds = SplitFeedback(str(tmp_path / "all.json"), str(cv / "folds"), folds=3, sizes=(4,)).run()
    for number, fold in enumerate(folds):
        for name, gap in (("small", 1.0), ("small_4", 0.0)):
            run_of(
                cv / f"fold_{number}" / name / "preference", [JudgedRecord(r.id, gaps=(gap,) * 3) for r in fold.test]
            )
    (cv / "fold_0" / "unfinished" / "preference").mkdir(parents=True)
    assert [(m.fold, m.name) for m in fold_models(cv)] == [(f, n) for n in ("small", "small_4") for f in range(3)]
    job = RewardModelsTable(
        str(tmp_path / "table.json"), "run it", chosen="Nothing.", directory=str(cv), names={"small": "a small one"}
    )
    result = job.run()
    rows = {(row["kind"], row["system"]): row for row in result["rows"]}
    assert rows["preference", "small"]["metrics"]["pair_accuracy"]["value"] == 1.0
    assert rows["preference", "small"]["questions"] == 30 and rows["factuality", "counts"]["questions"] == 30
    assert rows["preference", "small_4"]["records"] == 4
    tuned = len(folds[0].tune)
    left = next(r for r in result["rows_without_tuned"] if (r["kind"], r["system"]) == ("preference", "small"))
    assert left["questions"] == 30 - tuned > 0 and set(result["run_settings"]["runs"]) == {
        "small/preference",
        "small_4/preference",
    }
    page = (tmp_path / "table.md").read_text()
    assert job.page(json.loads((tmp_path / "table.json").read_text())) == page
    for words in ("a small one", "paper: 2,853 records", "| 4 ", "factuality   | balanced_accuracy ≥ 0.55"):
        assert words in page, words


def test_a_table_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model has judged"):
        RewardModelsTable(str(tmp_path / "t.json"), "run it", chosen="", directory=str(tmp_path)).run()


def test_rows_of_an_earlier_table_are_kept_where_asked_and_their_data_is_the_same(tmp_path: Path) -> None:
    write_feedback(tmp_path / "all.json", feedback(18))
    folds = SplitFeedback(str(tmp_path / "all.json"), str(tmp_path / "one/folds"), folds=3).run()
    shutil.copytree(tmp_path / "one/folds", tmp_path / "two/folds")

    def table(directory: str, models: dict[str, float], **fields: bool) -> dict[str, Any]:
        for number, fold in enumerate(folds):
            for name, gap in models.items():
                rows = [JudgedRecord(r.id, gaps=(gap,) * 3) for r in fold.test]
                run_of(tmp_path / directory / f"fold_{number}" / name / "preference", rows)
        made = str(tmp_path / "table.json"), "run it"
        return RewardModelsTable(*made, chosen="", directory=str(tmp_path / directory), **fields).run()  # type: ignore[arg-type]

    first = table("one", {"small": 1.0, "wide": 1.0})
    second = table("two", {"new": 1.0, "wide": -1.0}, keep=True)
    assert second["kept"] == [
        {
            **{key: first[key] for key in ("commit", "command_line", "hardware", "configuration")},
            "rows": ["small/preference"],
        }
    ]
    for part in ("rows", "rows_without_tuned"):
        old, new = ({(r["kind"], r["system"]): r for r in result[part]} for result in (first, second))
        assert new["preference", "small"] == old["preference", "small"]
        assert new["preference", "wide"]["metrics"]["pair_accuracy"]["value"] == 0.0
        assert [name for kind, name in new if kind == "preference"] == [
            "length",
            "overlap",
            "counts",
            "new",
            "small",
            "wide",
        ]
    assert set(second["run_settings"]["runs"]) == {"small/preference", "new/preference", "wide/preference"}
    assert set(second["seconds"]) == {f"{n}/{name}/preference" for n in range(3) for name in ("small", "new", "wide")}
    assert "Kept from the making at commit" in (tmp_path / "table.md").read_text()
    again = table("two", {}, keep=True)
    assert again["kept"] == second["kept"] and again["rows"] == second["rows"]
    write_feedback(tmp_path / "other.json", feedback(15))
    shutil.rmtree(tmp_path / "two")
    folds = SplitFeedback(str(tmp_path / "other.json"), str(tmp_path / "two/folds"), folds=3).run()
    before = (tmp_path / "table.json").read_bytes()
    with pytest.raises(DataError, match=r"table.json: .* is another baseline there: its rows are of other data"):
        table("two", {"new": 1.0}, keep=True)
    assert (tmp_path / "table.json").read_bytes() == before
