"""The table of responses: numbers of every seed, what they say of the thesis's claims, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tables_toy import write_settings

from finegrained_lab.experiments.dialki.responses import ResponseTable
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json, write_jsonl

BLEU = {"document": (10.0, 30.0), "span_found": (50.0, 20.0), "span_and_passage_found": (60.0, 40.0)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed in (0, 1):
        for run in ResponseTable.runs:
            write_settings(tmp_path / f"seed_{seed}" / run, seed)
            write_jsonl(tmp_path / f"seed_{seed}" / run / "metrics.jsonl", [{"step": 1, "time/step_s": 3.0}])
            rows = [{"step": step, "score": step / 2000 + seed / 10, "time/validate_s": 1} for step in (0, 400, 1600)]
            write_jsonl(tmp_path / f"seed_{seed}" / run / "eval.jsonl", rows)
        settings = {"generator_steps": 1600, "document_steps": 600}
        write_json(tmp_path / f"seed_{seed}" / "experiment.json", {"seed": seed, "settings": settings})
        for system in ResponseTable.systems:
            metrics = {"bleu": BLEU.get(system, (80.0, 80.0))[seed], "bleu_signature": "nrefs:1|tok:13a"}
            metrics |= {"exact_match": 0.5, "token_f1": 0.6, "rouge_lsum": 0.7}
            if system.endswith("_found"):
                metrics |= {f"knowledge_{name}": 0.8 for name in ("exact_match", "f1")}
                metrics |= {"knowledge_passage_accuracy": 0.91 + 0.02 * seed}
            write_json(tmp_path / f"seed_{seed}" / "answers" / f"{system}.metrics.json", metrics)
    return tmp_path


def table(root: Path) -> ResponseTable:
    return ResponseTable(str(root / "table.json"), "python it", str(root), [0, 1], chosen="On seed 2.")


def test_rows_means_and_the_claims_of_the_thesis(root: Path) -> None:
    result = table(root).run()
    assert read_json(root / "table.json") == result
    assert [(r["seed"], r["bleu"]) for r in result["rows"] if r["system"] == "span_found"] == [(0, 50), (1, 20)]
    assert result["summary"]["span_found"]["bleu"]["mean"] == 35
    assert result["differences"]["systems"]["span_found"]["bleu"] == {
        "mean": 15, "error": 25, "min": -10, "max": 40, "higher": 1, "lower": 1, "seeds": 2
    }  # fmt: skip
    assert [(claim["means"], claim["holds_in"]) for claim in result["claims"]] == [([35, 20], 1), ([50, 35], 2)]
    page = (root / "table.md").read_text()
    assert re.search(r"25\.160 against 22\.840 +\| 35\.000 against 20\.000 +\|.*1 of 2 seeds", page)
    assert "Every generator was trained for 1600 steps, the one that reads the document 600." in page
    assert re.search(r"\| generator +\| seed \| step 0 \| step 400 \| step 1600 \|", page)
    assert re.search(r"\| span +\| 1 +\| 0\.100 +\| 0\.300 +\| 0\.900 +\|", page)
    assert "nrefs:1|tok:13a" in page and re.search(r"\| 1 +\| 0\.930 +\|", page)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bleu": None}, "field bleu: is not among the scores"),
        ({"knowledge_f1": None}, "field knowledge_f1: is not among the scores"),
        ({"bleu_signature": "nrefs:1|tok:intl"}, "measured in different ways: nrefs:1|tok:13a, nrefs:1|tok:intl"),
    ],
)
def test_what_is_wrong_is_named(root: Path, change: dict, message: str) -> None:
    path = root / "seed_1/answers/span_found.metrics.json"
    changed = {**read_json(path), **change}
    write_json(path, {key: value for key, value in changed.items() if value is not None})
    with pytest.raises(DataError, match=re.escape(message)):
        table(root).run()


def test_a_missing_seed_is_named(root: Path) -> None:
    (root / "seed_1/answers/none.metrics.json").unlink()
    with pytest.raises(DataError, match="seed_1/answers/none.metrics.json: no such file"):
        table(root).run()
