"""Folds of rewards with a bottleneck, and their table: run on a tiny encoder, and made of numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from feedback_samples import record
from reward_model_samples import save_bert

from finegrained_lab.experiments.qa_feedback.bottleneck import BottleneckRow, BottleneckTable, RunBottleneckFolds
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from reward_models.config import BottleneckConfig
from reward_models.kinds import KINDS, SegmentKind

NAMES = ("Vara", "Ulm", "Tarn", "Skell", "Rosk", "Pell", "Orm", "Nairn", "Mull", "Lorn")


def feedback() -> list[FeedbackRecord]:
    """Ten questions of which the passages say three things; the gold answer says the last one."""
    records = []
    for i, name in enumerate(NAMES):
        year = 1871 + 3 * i
        texts = (
            f"Sheep graze on the northern meadows of {name} in summer.",
            f"Boats leave for {name} twice a day.",
            f"The lighthouse of {name} was painted red in {year} by Anna Holm.",
        )
        wrong = "Its tower fell in a storm in 1705."
        answers = (f"{texts[2]} {wrong}", f"{texts[2]} {texts[1]}", texts[0], wrong)
        one = record(
            answers[0],
            [(wrong, "Unverifiable"), (wrong, "Irrelevant")] if i % 2 else [(wrong, "Unverifiable")],
            others=answers[1:],
            correction=texts[2],
            preferences=(2, 1, 1, 1, 1, 1),
            name=f"r{i}",
            passages=(Passage("", name, texts),),
        )
        records.append(
            replace(one, question=f"Who painted the lighthouse of {name}?", gold=f"Anna Holm painted it in {year}.")
        )
    return records


def table(directory: Path, names: dict[str, str]) -> BottleneckTable:
    return BottleneckTable(
        output=str(directory / "table.json"),
        command="made",
        chosen="Nothing.",
        evidence="real data",
        judged_by="labels",
        feedback=str(directory / "feedback.json"),
        directory=str(directory),
        names=names,
    )


def test_folds_are_run_once(tmp_path: Path) -> None:
    write_feedback(tmp_path / "feedback.json", feedback())
    encoder = str(save_bert(tmp_path / "bert"))
    config = BottleneckConfig(place=False, planted=("copy",), changes=0)
    rows = {
        "planted": BottleneckRow(encoder, config, folds=(0,), searched=1),
        "oracle": BottleneckRow(encoder, oracle=True, folds=(0,), searched=0),
    }
    job = RunBottleneckFolds(str(tmp_path / "feedback.json"), str(tmp_path), rows)
    job.run()
    before = {name: job.place(name, 0).stat().st_mtime_ns for name in rows}
    job.run()
    assert before == {name: job.place(name, 0).stat().st_mtime_ns for name in rows}
    planted, oracle = (read_json(job.place(name, 0)) for name in rows)
    assert oracle["choice"] == {} and planted["choice"]["read"] == [] and planted["price"]["questions"] == 1
    assert all(one["auc"] == 1.0 for one in oracle["need"].values())  # what is needed is what is measured
    tested = {"swap", "insert", "copy", "delete", "mismatch", "degenerate", "pad", "cut"}
    assert {one["family"] for one in oracle["changes"]} < tested
    for fold in (planted, oracle):
        assert len(fold["need"]) == 2 == len(fold["judged"]["factuality"])
        assert all(one["values"]["empty"]["relevance"] == -1.0 for one in fold["trivial"].values())


def fold_of(ids: list[str], gold: list[float]) -> dict[str, Any]:
    """What the file of a fold holds: gold answers with these totals beside a cut lead of .5; a row of each kind."""

    def judged(id: str, kind: str) -> dict[str, Any]:
        pair = {"has_error": [True, False], "probabilities": [0.9, 0.6], "claims": [True, True]}
        return {"record": id, **(pair if isinstance(KINDS[kind], SegmentKind) else {"gaps": [1.0, -1.0, 2.0, 0.5]})}

    def values(total: float) -> dict[str, float]:
        return dict.fromkeys(("relevance", "factuality", "completeness", "total"), total)

    change = {"name": "swap_name", "family": "swap", "source": "gold", "role": "factuality", "direction": "fall"}
    bought = [{"record": id, "total": 1.0, "median": 2.0} for id in ids]
    return {
        "choice": {"corrected": False, "read": ["place"], "vector_ridge": None},
        "weights": {"relevance": 1.0, "factuality": 0.5, "completeness": 0.25},
        "need": {id: {"needed": 1, "sentences": 3, "auc": 0.75, "average_precision": 0.5} for id in ids},
        "changes": [{**change, "record": id, "right": i > 0} for i, id in enumerate(ids)],
        "judged": {kind: [judged(id, kind) for id in ids] for kind in KINDS},
        "trivial": {
            id: {
                "values": {"gold": values(total), "cut lead": values(0.5)},
                "lead_lacks_gold": i < 3,
                "gold_facts": 2,
                "gold_facts_unsupported": i % 2,
            }
            for i, (id, total) in enumerate(zip(ids, gold, strict=True))
        },
        "price": {"bought": 0.25, "questions": len(ids), "examples": bought},
    }


def test_a_table_of_numbers_by_hand(tmp_path: Path) -> None:
    write_feedback(tmp_path / "feedback.json", feedback())
    write_json(tmp_path / "fold.json", fold_of([f"r{i}" for i in range(10)], [0.6, 0.4, 0.7, *[0.4] * 7]))
    (tmp_path / "hand").mkdir()
    (tmp_path / "fold.json").rename(tmp_path / "hand" / "fold_0.json")
    (row,) = table(tmp_path, {"hand": "by hand.", "later": "not there."}).run()["rows"]
    assert row["people"]["relevance"]["value"] == 0.5 and row["people"]["preference"]["value"] == 0.75
    assert row["changes"][0]["ranked_right"] == 0.9 and row["price"]["below_median"]["ranked_right"] == 1.0
    trivial = row["trivial"]
    assert trivial["gold_above_lead_that_lacks"]["ranked_right"] == pytest.approx(2 / 3)
    assert trivial["gold_above_lead_that_lacks_supported"]["ranked_right"] == 1.0  # of questions 0 and 2
    assert trivial["gold_above_other_leads"]["ranked_right"] == 0.0 and trivial["gold_facts"] == [5, 20]
    assert row["need"]["auc"] == {"value": 0.75, "low": 0.75, "high": 0.75} and row["need"]["nothing_needed"] == 0
    page = (tmp_path / "table.md").read_text("utf-8")
    assert "- `hand`: by hand. Folds: 1." in page and "- `later`: not there. Not run." in page
    assert "5 of their 20 names" in page and "1.00 / 0.50 / 0.25" in page
    reached = {
        line.split("|")[2].strip(): line.split("|")[4].strip()
        for line in page.splitlines()
        if line.endswith(("| yes     |", "| no      |"))
    }
    assert reached["price below the median answer in 0.90"] == "yes"
    assert reached["gold above a cut lead that lacks its facts in 0.90"] == "no"
    with pytest.raises(DataError, match="no row has a fold"):
        table(tmp_path, {"later": "not there."}).run()
