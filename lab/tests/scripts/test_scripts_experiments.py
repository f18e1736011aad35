"""The shortest runs of whole experiments: FactWorld from scratch through every step, and real human feedback."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from script_runs import run_script as run

from finegrained_rlhf.core.files import read_json, read_jsonl

pytestmark = [pytest.mark.scripts, pytest.mark.slow]

SMALL = (
    "settings.train_questions=24",
    "settings.dev_questions=12",
    "settings.test_questions=10",
    "settings.sft_steps=60",
    "settings.reward_model_steps=5",
    "settings.preference_model_steps=5",
    "settings.ppo_steps=2",
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("experiments") / "demo"
    finished = run("run_experiment", "pipeline=factworld/demo", f"output_dir={output}", "seed=3", *SMALL)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "| fine_grained_rlhf |" in finished.stdout and str(output / "report.json") in finished.stdout
    return output


def test_open_questions_and_free_gold_answers(tmp_path: Path) -> None:
    """Both SFTs on gold answers begin where the imperfect writer's pupil ended."""
    few = ("settings.gold=16", "settings.few_steps=4", "settings.full_steps=4")
    table = tmp_path / "table.json"
    where = (f"output_dir={tmp_path}", "seeds=[3]", f"collect.output={table}")
    finished = run("run_experiment", "pipeline=factworld/free_form", *where, *SMALL, *few)
    assert finished.returncode == 0, finished.stderr[-3000:]
    settings = read_json(table)["run_settings"]["runs"]
    starts = {name: settings[name]["policy"]["path"] for name in ("sft_few", "sft_full")}
    assert starts == {"sft_few": "DIRECTORY/sft", "sft_full": "DIRECTORY/sft"}
    systems = {row["system"] for row in read_json(table)["rows"]}
    assert systems == {"gold", "sft", "sft_few", "sft_full", "preference_rlhf", "fine_grained_rlhf"}
    gold = next(row for row in read_json(table)["rows"] if row["system"] == "gold")
    assert (gold["relevance_error_rate"], gold["factual_error_rate"], gold["rouge_lsum"]) == (0.0, 0.0, 1.0)
    assert 0 < gold["completeness"] < 1  # gold answers hold half of the auxiliary facts
    feedback = read_json(tmp_path / "seed_3" / "feedback.json")
    missing = {m["error type"] for record in feedback for m in record["feedback"]["missing-info"]}
    assert missing <= {"Missing-Answer", "Missing-Major-Auxiliary"} and "Missing-Major-Auxiliary" in missing


def test_report_of_the_demo(demo: Path) -> None:
    report = read_json(demo / "report.json")
    assert report["seed"] == 3 and report["annotator_noise"] == 1.0
    for system in ("sft", "preference_rlhf", "fine_grained_rlhf"):
        row = report[system]
        assert {"relevance_error_rate", "factual_error_rate", "completeness", "rouge_lsum", "mean_tokens"} <= set(row)
        assert all(0 <= row[name] <= 1 for name in ("relevance_error_rate", "factual_error_rate", "completeness"))
        assert row["episodes"] == (0 if system == "sft" else 128)
        assert row["feedback_items"] == (0 if system == "sft" else 24) and row["seconds"] > 0
    assert report["sft"]["rouge_lsum"] == read_json(demo / "evaluation" / "sft.json")["rouge_lsum"]
    for kind in ("relevance", "factuality", "completeness", "preference"):
        assert 0 <= report["reward_models"][kind]["dev_accuracy"] <= 1


def test_second_run_keeps_what_is_there(demo: Path) -> None:
    before = (demo / "fine_grained_rlhf" / "metrics.jsonl").read_bytes()
    again = run("run_experiment", "pipeline=factworld/demo", f"output_dir={demo}", "seed=3", *SMALL)
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stdout.count("is done") == 16 and again.stdout.count("[0.0 min, ") == 1  # the report
    assert (demo / "fine_grained_rlhf" / "metrics.jsonl").read_bytes() == before


def test_another_seed_does_not_mix_with_the_results_of_the_first(demo: Path) -> None:
    steps = ("world", "models", "sft", "outputs", "feedback", "feedback_dev", "reward_models", "preference_model")
    steps += ("preference_rlhf", "fine_grained_rlhf", "evaluation", "report")
    without = [f"steps.{name}=null" for name in steps]
    other = run("run_experiment", "pipeline=factworld/demo", f"output_dir={demo}", "seed=4", *SMALL, *without)
    aside = demo.with_name("demo.0")
    try:
        assert "moved to" in other.stdout and read_json(aside / "report.json")["seed"] == 3
        assert not (demo / "report.json").exists()
    finally:
        if aside.exists():
            for path in demo.iterdir():
                path.unlink()
            demo.rmdir()
            aside.rename(demo)


def test_a_table_builds_on_the_models_of_its_seed_and_skips_what_is_done(demo: Path, tmp_path: Path) -> None:
    root = tmp_path / "tables" / "seed_3"
    shutil.copytree(demo, root, ignore=shutil.ignore_patterns("evaluation", "report.*"))
    results = tmp_path / "results" / "factworld_ablation.json"
    table = (
        "pipeline=factworld/ablation",
        f"output_dir={tmp_path / 'tables'}",
        "seeds=[3]",
        f"collect.output={results}",
    )
    finished = run("run_experiment", *table, *SMALL)
    assert finished.returncode == 0, finished.stderr[-3000:]
    result = read_json(results)
    systems = ["sft", "fine_grained_rlhf", *(f"without_{name}" for name in ("relevance", "factuality", "completeness"))]
    assert [row["system"] for row in result["rows"]] == systems and result["seeds"] == [3]
    for row in result["rows"]:
        measured = read_json(root / "evaluation" / f"{row['system']}.json")
        assert row["completeness"] == measured["completeness"]
        assert row["rel_reward"] == measured["reward/relevance/error_free_share"]
    for name in ("relevance", "factuality", "completeness"):
        steps = read_jsonl(root / f"without_{name}" / "metrics.jsonl")
        assert len(steps) == 2 and all(step[f"reward/{name}/weighted"] == 0 for step in steps)
    assert "## The thesis and FactWorld" in results.with_suffix(".md").read_text(encoding="utf-8")
    assert results.with_suffix(".svg").is_file()
    before = {path: path.read_bytes() for path in root.rglob("*.jsonl")}
    again = run("run_experiment", *table, *SMALL)
    assert again.returncode == 0, again.stderr[-3000:]
    # World, models, SFT, two files of outputs and two of feedback, four reward models, four policies, five evaluations.
    assert again.stdout.count("is done") == 1 + 1 + 1 + 2 + 2 + 4 + 4 + 5 and "[0.0 min, " not in again.stdout
    assert {path: path.read_bytes() for path in root.rglob("*.jsonl")} == before
    assert read_json(results)["rows"] == result["rows"]


def test_tiny_models_on_human_feedback(shared_data: Path, tmp_path: Path) -> None:
    output = tmp_path / "tiny"
    feedback = shared_data / "qa_feedback"
    finished = run(
        "train_ppo",
        "experiment=qa_feedback/tiny",
        f"output_dir={output}",
        f"data={feedback / 'dev.json'}",
        f"settings.feedback={feedback / 'dev_feedback.json'}",
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = read_jsonl(output / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    for row in [*rows, *read_jsonl(output / "eval.jsonl")]:
        assert all(isinstance(value, int | float) and math.isfinite(value) for value in row.values()), row
        assert row["alignment"] == 1.0
    for row in rows:
        for name, weight in (("relevance", 0.3), ("factuality", 0.5), ("completeness", 0.3)):
            assert row[f"reward/{name}/weighted"] == pytest.approx(weight * row[f"reward/{name}/raw"], abs=1e-5)
    for kind in ("relevance", "factuality", "completeness", "preference"):
        measured = json.loads((output / "prepared" / "reward_models" / kind / "metrics.json").read_text())
        assert math.isfinite(measured["dev"]["loss"])
    for sample in read_jsonl(output / "samples" / "step_5.jsonl"):
        for segment in sample["segments"]:
            assert 0 <= segment["start"] <= segment["end"] <= len(sample["response"])
