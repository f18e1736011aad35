"""The table of what human rewrites are worth, on hand-made directories: rows, retrievers, claims, what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tables_toy import write_settings

from finegrained_lab.experiments.conqrr.supervision import DENSE, QUERIES, SupervisionTable
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json, write_jsonl

MRR = {"t5qr_1": 0.5, "rl_1": 0.75, "rl_0": 0.2, "t5qr_0": 0.3, "rewrite": 1.0}
DENSE_MRR = {
    ("first", "context"): 0.3,
    ("context", "context"): 0.8,
    ("rewrite", "rewrite"): 0.9,
    ("mix_10", "mix_10"): 0.6,
}


def scores(mrr: float) -> dict[str, object]:
    topic = {"concentrated": {"mrr": mrr / 2}, "shifted": {"mrr": mrr / 4}}
    overall = {"mrr": mrr, "hit_rate@10": 0.7, "hit_rate@100": 0.9}
    return {"overall": overall, "groups": {"topic": topic}, "tokens": 6.0, "overlap": 0.5, "repeats": 0.1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed in (0, 1):
        folder = tmp_path / f"seed_{seed}"
        write_json(folder / "experiment.json", {"seed": seed, "settings": {"train": 150, "more": 1000}})
        for run in SupervisionTable.runs:
            write_settings(folder / run, seed)
            write_jsonl(folder / run / "metrics.jsonl", [{"step": 1, "time/step_s": 90.0}])
            rows = [
                {
                    "step": step,
                    "accuracy": 0.5 - step / 100,
                    "rouge1": 0.5,
                    "mrr": 0.2 + step / 100,
                    "time/validate_s": 1,
                }
                for step in (0, 20)
            ]
            write_jsonl(folder / run / "eval.jsonl", rows)
        bm25 = [system for system in SupervisionTable.systems if system not in DENSE]
        systems = {system: scores(MRR.get(system, 0.4)) for system in bm25}
        write_json(folder / "evaluation.json", {"systems": systems})
        for retriever in ("first", *QUERIES):
            asked = {query for name, query in DENSE.values() if name == retriever}
            found = {query: scores(DENSE_MRR.get((retriever, query), 0.5)) for query in asked}
            write_json(folder / f"dense/evaluation_{retriever}.json", {"systems": found})
    return tmp_path


def table(root: Path) -> SupervisionTable:
    return SupervisionTable(str(root / "results/table.json"), "python it", str(root), [0, 1], chosen="On seed 2.")


def test_by_hand(root: Path) -> None:
    result = table(root).run()
    assert read_json(root / "results/table.json") == result
    mrr = {system: found["mrr"]["mean"] for system, found in result["summary"].items()}
    assert (mrr["rl_1"], mrr["rewrite"], mrr["first_context"], mrr["tuned_context"]) == (0.75, 1.0, 0.3, 0.8)
    assert (mrr["tuned_rewrite"], mrr["first_rewrite"]) == (0.9, 0.5)
    claims = {claim["claim"]: claim["holds_in"] for claim in result["claims"]}
    assert claims["with no rewrite, CONQRR beats T5QR"] == 0 and claims["with 1% of them, CONQRR (RL) does"] == 2
    assert claims["… where it shifts, the human's rewrite beats the dialogue"] == 2
    assert claims["… and where it stays, the human's rewrite"] == 0
    assert claims["with a trained retriever, where the topic stays, the dialogue beats CONQRR (mix)"] == 2
    page = (root / "results/table.md").read_text()
    assert page == table(root).page(result)
    assert "150 training dialogues" in page and "human rewrites of 1000 dialogues" in page
    assert re.search(r"\| rl_0 +\| 1 +\| 0\.500 +\| 0\.500 \| 0 +\| 0\.300", page)  # the first policy is kept
    assert re.search(r"\| context +\| 1 +\| 0\.200 +\| 0\.400 \| 20 +\| 0\.400", page)
    assert "table.svg" in page and (root / "results/table.svg").read_text().lstrip().startswith("<?xml")


def test_an_evaluation_that_lacks_a_query_is_named(root: Path) -> None:
    path = root / "seed_1/dense/evaluation_first.json"
    found = read_json(path)
    del found["systems"]["rl_10"]
    write_json(path, found)
    with pytest.raises(DataError, match=r"evaluation_first\.json, field systems: expected scores of rl_10"):
        table(root).run()
