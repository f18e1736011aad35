"""The SCAI-QReCC shared task: scores worked by hand, its evaluator's own steps, run files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import pytrec_eval
from mills_toy import job, make_mills

from finegrained_lab.published.questions.scai import EvaluateScai, read_scai_run, read_scai_truth, score_scai
from finegrained_rlhf.conqrr.data import read_rewrite_jsonl
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.metrics.functions import rouge1_recalls


def truth_rows() -> list[dict[str, Any]]:
    def row(turn: int, rewrite: str, answer: str, passages: list[str]) -> dict[str, Any]:
        return {
            "Conversation_no": 3,
            "Turn_no": turn,
            "Truth_rewrite": rewrite,
            "Truth_answer": answer,
            "Truth_passages": passages,
        }

    return [
        row(1, "who was Ada", "a poet", ["p1"]),
        row(2, "where was Ada born", "in London", ["p2", "p3"]),
        row(3, "when did Ada die", "", []),
        row(4, "", "the 1852", ["p4"]),
        row(5, "why", "cancer", ["p5"]),
    ]


def run_rows() -> list[dict[str, Any]]:
    return [
        {"Conversation_no": 3, "Turn_no": 1, "Model_rewrite": "nothing", "Model_passages": {"x": 2.0, "p1": 1.0}},
        {
            "Conversation_no": 3,
            "Turn_no": 2,
            "Model_rewrite": "where was she born",
            "Model_passages": {"x": 3.0, "p3": 1.0, "y": 2.0, "p2": 0.5},
            "Model_answer": "London, in England",
        },
        {"Conversation_no": 3, "Turn_no": 3, "Model_rewrite": "Ada die", "Model_passages": {"p1": 1.0}},
        {"Conversation_no": 3, "Turn_no": 4, "Model_passages": {}, "Model_answer": "1852."},
    ]


def write(path: Path, rows: Any) -> str:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return write(tmp_path / "truth.json", truth_rows()), write(tmp_path / "run.json", run_rows())


def scored(files: tuple[str, str], **options: bool) -> Any:
    return score_scai(read_scai_truth(files[0]), read_scai_run(files[1]), **options)


def test_by_hand(files: tuple[str, str]) -> None:
    """QR: turns 2, 3, 5: three of four words, two of four, none (absent). MRR: turns 1, 2, 4: 1/2, 1/3, 0; 5 is absent.

    Answers: turns 1, 2, 4, 5, of which 1 and 5 are absent: EM of 4; F1 of 2: 2 · 2 / (3 + 2); recall of 2 is 2 of 2, of
    4 one of two words.
    """
    found = scored(files)
    assert found.scores == pytest.approx(
        {
            "QR": (3 / 4 + 2 / 4 + 0) / 3,
            "MRR": (1 / 2 + 1 / 3 + 0) / 3,
            "EM": 1 / 4,
            "F1": (4 / 5 + 1) / 4,
            "ROUGE1-R": (1 + 1 / 2) / 4,
        }
    )
    assert found.turns == {"QR": 3, "MRR": 3, "answers": 4} and (found.absent, found.unknown) == (1, 0)


def test_the_papers_way_of_counting(files: tuple[str, str]) -> None:
    """First turns count in QR (nothing of `who was Ada`); turns without truth count as 0, or as found where none is."""
    assert scored(files, first_turns=True).scores["QR"] == pytest.approx((0 + 3 / 4 + 2 / 4 + 0) / 4)
    found = scored(files, missing_truth=True)
    assert found.turns == {"QR": 4, "MRR": 4, "answers": 5} and found.absent == 1
    assert found.scores["QR"] == pytest.approx((3 / 4 + 2 / 4) / 4)
    assert found.scores["MRR"] == pytest.approx((1 / 2 + 1 / 3) / 4)
    assert found.scores["EM"] == pytest.approx(2 / 5)  # turn 3 has neither truth nor answer


def test_mrr_as_the_evaluator_computes_it(files: tuple[str, str]) -> None:
    """The evaluator's own steps: a dictionary of passages a turn, pytrec_eval, the mean of what comes out."""
    run = {f"3_{row['Turn_no']}": row["Model_passages"] for row in run_rows()}
    truth = {f"3_{row['Turn_no']}": dict.fromkeys(row["Truth_passages"], 1) for row in truth_rows()}
    truth = {name: passages for name, passages in truth.items() if passages}
    kept = {name: passages for name, passages in run.items() if name in truth}
    theirs = [of["recip_rank"] for of in pytrec_eval.RelevanceEvaluator(truth, {"recip_rank"}).evaluate(kept).values()]
    assert scored(files).scores["MRR"] == pytest.approx(sum(theirs) / len(theirs))


def test_steps_that_a_run_leaves_out_have_no_score(files: tuple[str, str], tmp_path: Path) -> None:
    rows = [{"Conversation_no": 3, "Turn_no": 2, "Model_rewrite": "where"}, {"Conversation_no": 9, "Turn_no": 1}]
    found = scored((files[0], write(tmp_path / "other.json", rows)))
    assert found.scores == pytest.approx({"QR": 1 / 4 / 3}) and found.unknown == 1 and found.absent == 0


def test_recall_by_hand() -> None:
    assert rouge1_recalls(["a b c d", "", "x"], ["A b!", "x", ""]) == [1.0, 0.0, 0.0]


def test_the_job(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "scores.json"
    result = EvaluateScai(files[0], files[1], str(output)).run()
    assert json.loads(output.read_text()) == json.loads(json.dumps(result))
    assert result["scores"] == scored(files).scores and result["settings"]["missing_truth"] is False
    told = capsys.readouterr().out
    assert "| MRR      | 0.278 | 3" in told and "1 turns with truth passages have no Model_passages" in told


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"Turn_no": 0}, "Turn_no", "whole number from 1"),
        ({"Turn_no": 1}, "Turn_no", "turn 3_1 occurs twice"),
        ({"Conversation_no": None}, "Conversation_no", "expected text"),
        ({"Model_rewrite": 4}, "Model_rewrite", "expected text"),
        ({"Model_answer": ["x"]}, "Model_answer", "expected text"),
        ({"Model_passages": ["p1"]}, "Model_passages", "expected an object"),
        ({"Model_passages": {"": 1.0}}, "Model_passages", "blank text"),
        ({"Model_passages": {"p1": "1.0"}}, "Model_passages.p1", "expected a number"),
    ],
)
def test_broken_runs(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    rows = run_rows()
    rows[1].update(change)
    with pytest.raises(DataError, match=rf"run.json, record 1, field {field}: .*{problem}"):
        read_scai_run(write(tmp_path / "run.json", rows))


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"Turn_no": 1}, "Turn_no", "turn 3_1 occurs twice"),
        ({"Truth_rewrite": 4}, "Truth_rewrite", "expected text"),
        ({"Truth_answer": ["x"]}, "Truth_answer", "expected text"),
        ({"Truth_passages": "p2"}, "Truth_passages", "list of texts"),
        ({"Truth_passages": ["p2", ""]}, r"Truth_passages\[1\]", "empty"),
    ],
)
def test_broken_truth(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    rows = truth_rows()
    rows[1].update(change)
    with pytest.raises(DataError, match=rf"truth.json, record 1, field {field}: .*{problem}"):
        read_scai_truth(write(tmp_path / "truth.json", rows))
    for key in ("Conversation_no", "Turn_no", "Truth_rewrite", "Truth_answer"):
        rows = truth_rows()
        del rows[2][key]
        with pytest.raises(DataError, match=f"record 2, field {key}: missing field"):
            read_scai_truth(write(tmp_path / "truth.json", rows))


def test_a_run_of_another_file_is_no_score(files: tuple[str, str], tmp_path: Path) -> None:
    for rows, problem in (({}, "JSON array"), ([], "one at least")):
        with pytest.raises(DataError, match=problem):
            read_scai_run(write(tmp_path / "x.json", rows))
    path = write(tmp_path / "x.json", [{"Conversation_no": 8, "Turn_no": 1}])
    with pytest.raises(DataError, match="x.json, record 8_1: no turn of the run is one of the data"):
        EvaluateScai(files[0], path).run()


def test_evaluations_write_runs_that_score_alike(tmp_path: Path) -> None:
    """Every question has a record; one without a query has no rewrite and counts as 0 in both."""
    folder = make_mills(tmp_path)
    path = folder / "questions.jsonl"
    with pytest.raises(DataError, match="record d_1, field dialogue: expected the number of a conversation"):
        job(folder, scai_runs=str(folder / "scai")).run()
    assert not (folder / "scai").exists() and not (folder / "runs").exists()
    path.write_text(path.read_text().replace('"d_', '"7_').replace('"d"', '"7"'))
    (folder / "ours.jsonl").write_text('{"id": "7_2", "rewrite": "color mill"}')
    result = job(folder, scai_runs=str(folder / "scai")).run()
    rows = [
        {
            "Conversation_no": 7,
            "Turn_no": example.turn,
            "Truth_rewrite": example.rewrite,
            "Truth_answer": "",
            "Truth_passages": list(example.gold),
        }
        for example in read_rewrite_jsonl(path)
    ]
    truth = read_scai_truth(write(folder / "truth.json", rows))
    for name in ("question", "context", "rewrite", "ours"):
        run = read_scai_run(folder / "scai" / name / "run.json")
        scores = score_scai(truth, run).scores
        assert scores["MRR"] == pytest.approx(result["systems"][name]["overall"]["mrr"])
    rows = json.loads((folder / "scai/ours/run.json").read_text())
    assert rows[0] == {"Conversation_no": 7, "Turn_no": 1, "Model_passages": {}}
    assert list(rows[1]) == ["Conversation_no", "Turn_no", "Model_rewrite", "Model_passages"]
    assert next(iter(rows[1]["Model_passages"])) == "red"
