"""The table of a pretrained policy on hand-made directories: two sets of reward models, intervals, samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from feedback_samples import LAKE
from tables_toy import write_settings

from finegrained_lab.experiments.qa_feedback.policies import RealPolicyTable, intervals
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs

QUESTIONS = 6
FREE = {"sft": 1, "best_of": 2, "preference_rlhf": 1, "fine_grained_rlhf": 4}
"""Sub-sentences of four that the own relevance model finds free of error; the judge finds one in every system."""


def questions(free: int) -> list[dict]:
    return [
        {
            "id": f"q{i}",
            "words": 5,
            "rouge_lsum": 0.1 * i,
            "rewards": {
                "relevance": {"sum": 2.0 * free - 4, "segments": 4, "error_free": free},
                "factuality": {"sum": 1.0, "segments": 1 + i % 2, "error_free": 1},
                "completeness": {"sum": 0.25, "segments": 1},
            },
        }
        for i in range(QUESTIONS)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    seed = tmp_path / "seed_0"
    write_json(seed / "experiment.json", {"seed": 0, "settings": {"budget": "cpu"}})
    write_json(seed / "forecast.json", {"step_s": 30.0})
    write_json(seed / "questions" / "split.json", {"train": 10, "test": QUESTIONS})
    for run in RealPolicyTable.runs:
        write_settings(seed / run, 0)
        write_jsonl(seed / run / "metrics.jsonl", [{"step": 1, "time/step_s": 30.0}])
    for system, free in FREE.items():
        for name, count in ((system, free), (f"{system}_judge", 1)):
            measured = {"rouge_lsum": 0.25, "mean_words": 5.0, "mean_tokens": 7.0, "finished_share": 0.5}
            measured |= {"reward/relevance/error_free_share": count / 4, "reward/factuality/error_free_share": 0.75}
            measured |= {"reward/completeness/mean_score": 0.25, "reward/total": 1.0}
            write_json(seed / "evaluation" / f"{name}.json", measured)
            write_jsonl(seed / "evaluation" / f"{name}.questions.jsonl", questions(count))
        loop = " on and on and on" if system == "fine_grained_rlhf" else ""
        records = [
            OutputRecord(f"q{i}", f"Why {i}?", (LAKE,), ("It | is.",), "", (f"{system}\n{i}{loop}",)) for i in range(6)
        ]
        write_outputs(seed / "evaluation" / f"{system}.outputs.jsonl", records)
    for name, free in (("gold", 3), ("best_sentence", 2), ("cut_lead", 0)):
        write_jsonl(seed / "evaluation" / f"{name}_judge.questions.jsonl", questions(free))
    return tmp_path


def table(root: Path) -> RealPolicyTable:
    return RealPolicyTable(str(root / "table.json"), "python it", str(root), [0], chosen="Nothing.")


def test_rows_intervals_and_samples(root: Path) -> None:
    result = table(root).run()
    assert read_json(root / "table.json") == result
    rows = {row["system"]: row for row in result["rows"]}
    assert rows["fine_grained_rlhf"]["own_relevance"] == 1.0 and rows["fine_grained_rlhf"]["judge_relevance"] == 0.25
    assert rows["sft"]["tokens"] == 7.0 and "host" not in result["hardware"]
    found = result["intervals"]["fine_grained_rlhf"]
    assert found["own_relevance"] == [0.75, 0.75, 0.75] and found["judge_relevance"] == [0.0, 0.0, 0.0]
    assert found["rouge_lsum"] == [0.0, 0.0, 0.0] and "judge_rouge_lsum" not in found
    # after the name and a number "on and on and on": of six pairs "on and" and "and on" come twice
    assert rows["fine_grained_rlhf"]["repeats"] == pytest.approx(1 / 3) and rows["best_of"]["repeats"] == 0
    assert found["repeats"] == pytest.approx([1 / 3] * 3)
    assert result["against_preference"]["repeats"] == pytest.approx([1 / 3] * 3)
    gate = result["gate"]  # relevance alone differs: .3 a sub-sentence and two for an error
    assert gate["rows"]["gold"]["mean"] == pytest.approx(0.3 * 2 + 0.5 + 0.3 * 0.25)
    assert gate["order"]["gold less sft"]["value"] == pytest.approx(0.3 * 4)
    assert gate["reasons"] == ["no stress test of the judge on these questions"]
    page = (root / "table.md").read_text()
    assert "The judge does not pass" in page and "| best_sentence " in page
    assert (
        "**Why 0?**" in page and "| gold" in page and r"It \| is." in page and "sft 0" in page and "Why 4" not in page
    )
    assert "| fine_grained_rlhf less preference_rlhf |" in page
    assert "+0.750 [+0.750, +0.750]" in page and "Budget `cpu`" in page and "train 10, test 6" in page


def test_an_interval_is_over_questions(root: Path) -> None:
    """Half of the questions gain all of four sub-sentences: +.375 with borders inside (0, .75)."""
    path = root / "seed_0" / "evaluation" / "best_of.questions.jsonl"
    write_jsonl(path, [row if i % 2 else questions(4)[i] for i, row in enumerate(questions(1))])
    mean, low, high = intervals([root / "seed_0"], "best_of", "sft")["own_relevance"]
    assert mean == 0.375 and 0 <= low < mean < high <= 0.75


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("sft_judge.json", {"reward/total": 1.0}, r"sft_judge\.json, field reward/relevance/error_free_share"),
        ("best_of.questions.jsonl", None, "best_of and sft answered other questions"),
    ],
)
def test_what_is_wrong_is_named(root: Path, name: str, change: dict | None, problem: str) -> None:
    path = root / "seed_0" / "evaluation" / name
    if change is None:
        write_jsonl(path, read_jsonl(path)[1:])
    else:
        write_json(path, change)
    with pytest.raises(DataError, match=problem):
        table(root).run()
