"""Tables 3.1 to 3.3 and 3.6 from evaluations by hand, and the shortest runs of both experiments on files of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dialki_files import WOW_PARTS, write_doc2dial_files, write_wow_files
from dialki_toy import save_bert
from script_runs import run_script
from tables_toy import write_settings

from finegrained_lab.experiments.dialki.thesis_tables import Doc2DialTable, WowTable, weighted_scores
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json, write_jsonl

Groups = dict[str, dict[str, float]]


def group(score: float, examples: int = 10) -> dict[str, float]:
    return {"examples": examples, "exact_match": score, "f1": score + 0.1, "passage_accuracy": score + 0.2}


def write_evaluations(folder: Path, runs: tuple[str, ...], parts: dict[str, Groups], seeds: tuple[int, ...]) -> None:
    """Every run's evaluations; the later a run stands in the list, the better it is by 0.01."""
    for seed in seeds:
        root = folder / f"seed_{seed}"
        write_json(root / "experiment.json", {"seed": seed, "settings": {"parts": list(parts)}})
        for better, run in enumerate(runs):
            write_settings(root / run, seed)
            write_jsonl(root / run / "metrics.jsonl", [{"step": 1, "time/step_s": 3.0}])
            for part, groups in parts.items():
                found = {
                    name: {key: value + (key != "examples") * 0.01 * better for key, value in values.items()}
                    for name, values in groups.items()
                }
                write_json(root / f"evaluation/{run}_{part}/evaluation.json", {"groups": found})


def table_of(kind: type[Doc2DialTable] | type[WowTable], folder: Path, seeds: tuple[int, ...] = (0, 1)) -> Any:
    return kind(str(folder / "table.json"), "the command", str(folder), seeds, chosen="On dev.")


def test_doc2dials_rows_claims_and_page(tmp_path: Path) -> None:
    validation = {"all": group(0.5), "seen": group(0.6, 4), "unseen": group(0.4, 6), "context/short": group(0.1)}
    write_evaluations(tmp_path, Doc2DialTable.runs, {"validation": validation, "test": {"all": group(0.3)}}, (0, 1))
    result = table_of(Doc2DialTable, tmp_path).run()
    assert len(result["rows"]) == 20
    row = next(row for row in result["rows"] if row["system"] == "next_only" and row["seed"] == 1)  # the fourth run
    assert row["exact_match"] == pytest.approx(0.53) and row["seen_f1"] == pytest.approx(0.73)
    assert row["unseen_passage_accuracy"] == pytest.approx(0.63) and row["test_exact_match"] == pytest.approx(0.33)
    assert len(result["claims"]) == 12 and all(claim["holds_in"] == 2 for claim in result["claims"])
    page = (tmp_path / "table.md").read_text()
    assert "`bertqa_span`: BERTQA-Span" in page and "test_exact_match" in page and "`bertqa`: BERTQA-Token" in page


def test_without_a_test_part_there_are_no_such_columns(tmp_path: Path) -> None:
    write_evaluations(tmp_path, Doc2DialTable.runs, {"validation": {"all": group(0.5), "seen": group(0.6)}}, (0, 1))
    table = table_of(Doc2DialTable, tmp_path)
    rows = table.rows({0: tmp_path / "seed_0"})
    assert table.shown_columns(rows) == tuple(
        f"{of}{name}" for of in ("", "seen_") for name in ("passage_accuracy", "exact_match", "f1")
    )
    (tmp_path / "seed_0/evaluation/all_validation/evaluation.json").unlink()
    with pytest.raises(DataError, match="all_validation"):
        table.rows({0: tmp_path / "seed_0"})


def test_wows_dev_is_both_splits_weighted_by_their_dialogues(tmp_path: Path) -> None:
    scores = dict(zip(WOW_PARTS[1:], ((0.6, 30), (0.2, 10), (0.5, 10), (0.3, 10)), strict=True))
    parts = {part: {"all": group(score, examples)} for part, (score, examples) in scores.items()}
    write_evaluations(tmp_path, WowTable.runs, parts, (0, 1))
    result = table_of(WowTable, tmp_path).run()
    row = result["rows"][0]
    assert row["system"] == "multi_sentence" and row["exact_match"] == pytest.approx(0.5)
    assert (row["seen_exact_match"], row["unseen_exact_match"]) == (0.6, 0.2)
    assert (row["test_seen_exact_match"], row["test_unseen_exact_match"]) == (0.5, 0.3)
    assert [claim["source"] for claim in result["claims"]][-1] == "table 3.2"
    write_evaluations(tmp_path, WowTable.runs, {"valid_random_split": {"all": group(0.5)}}, (0,))
    with pytest.raises(DataError, match=r"experiment\.json.*settings\.parts: expected .*valid_topic_split"):
        table_of(WowTable, tmp_path).rows({0: tmp_path / "seed_0"})
    with pytest.raises(DataError, match="no dialogue"):
        weighted_scores([group(0.1, 0)])


@pytest.mark.slow
@pytest.mark.scripts
@pytest.mark.parametrize("name", ["doc2dial", "wow"])
def test_the_shortest_run_of_an_experiment(name: str, tmp_path: Path) -> None:
    """Every step with one training step a run, two seeds, and the page; then nothing is left to do."""
    (tmp_path / "models").mkdir()
    save_bert(tmp_path / "models/bert", layers=1, positions=512)
    write = write_doc2dial_files if name == "doc2dial" else write_wow_files
    write(tmp_path / "data", 2)
    words = [f"pipeline=dialki/{name}", f"output_dir={tmp_path}/out", f"collect.output={tmp_path}/table.json"]
    words += [f"settings.data={tmp_path}/data", f"settings.models={tmp_path}/models", "seeds=[0,1]"]
    words += ["settings.epochs=0.01", "settings.precision=fp32"]
    words += ["settings.parts=[validation,test]"] if name == "doc2dial" else []
    for _ in range(2):
        done = run_script("run_experiment", *words)
        assert done.returncode == 0, done.stderr[-3000:]
    result, kind = read_json(tmp_path / "table.json"), Doc2DialTable if name == "doc2dial" else WowTable
    assert [row["system"] for row in result["rows"]] == [run for run in kind.runs for _ in range(2)]
    assert all(0 <= row[column] <= 1 for row in result["rows"] for column in kind.columns)
    settings = result["run_settings"]["runs"]
    assert settings["next_only"]["losses"]["history"] == settings["no_history"]["losses"]["history"] == 0
    assert settings["next_only"]["batches"]["passages"] == 20 and settings["all"]["losses"]["adversarial"] == 5
    assert (
        settings["context"]["losses"]["history"]
        == settings["all"]["losses"]["history"]
        == (1 if name == "doc2dial" else 0.5)
    )
    assert settings["all"]["dialki"]["contextualize"] and not settings["no_context"]["dialki"]["contextualize"]
    assert settings["multi_sentence"]["dialki"]["units"] == "sentences"
    assert (tmp_path / "table.md").read_text().startswith(f"# {kind.title}")
    if name == "doc2dial":
        assert settings["bertqa_span"]["dialki"]["units"] == "document" and "windows" in settings["bertqa"]["dialki"]
        assert len(read_json(tmp_path / "out/seed_1/shared_task/all_test.json")) == 8
