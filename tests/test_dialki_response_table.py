"""The table of responses: numbers of every seed, what they say of the thesis's claims, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialki.world.response_table import ResponseTable

BLEU = {"document": (10.0, 30.0), "span_found": (50.0, 20.0), "span": (90.0, 80.0)}


def table(root: Path, **changes) -> ResponseTable:
    for system, scores in BLEU.items():
        for seed, bleu in enumerate(scores):
            metrics = {"scored": 7, "bleu": bleu, "bleu_signature": "nrefs:1|tok:13a", "exact_match": 0.5}
            metrics |= {"token_f1": 0.6, "rouge_lsum": 0.7}
            if system.endswith("_found"):
                metrics |= {"knowledge_passage_accuracy": 0.9 + 0.02 * seed, "knowledge_exact_match": 0.8}
            write_json(root / f"seed_{seed}" / "answers" / f"{system}.metrics.json", metrics)
    settings = {"directory": str(root), "systems": list(BLEU), "output": str(root / "table.json"), "seeds": [0, 1]}
    return ResponseTable(**{**settings, "command": "python it", **changes})


def test_rows_means_and_the_claim_of_the_thesis(tmp_path: Path) -> None:
    result = table(tmp_path).run()
    assert read_json(tmp_path / "table.json") == result
    assert [(row["system"], row["seed"], row["bleu"]) for row in result["rows"]] == [
        (system, seed, bleu) for system, scores in BLEU.items() for seed, bleu in enumerate(scores)
    ]
    assert result["summary"]["span_found"]["bleu"]["mean"] == 35
    assert result["summary"]["span_found"]["knowledge_passage_accuracy"]["mean"] == pytest.approx(0.91)
    (claim,) = result["thesis"]
    assert (claim["means"], claim["holds_in"], claim["seeds"]) == ([35, 20], 1, 2)
    page = (tmp_path / "table.md").read_text()
    assert re.search(r"25\.16 against 22\.84 +\| 35\.00 against 20\.00 +\|.*1 of 2 seeds", page)
    assert re.search(r"\| span +\| 85\.000 ± 7\.071 .*– +\| – +\|", page) and "nrefs:1|tok:13a" in page


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several seeds"):
        table(tmp_path, seeds=None).run()
    with pytest.raises(DataError, match="seed_2/answers/document.metrics.json: no such file"):
        table(tmp_path, seeds=[2]).run()
    path = tmp_path / "seed_0/answers/span.metrics.json"
    good = table(tmp_path)
    write_json(path, {key: value for key, value in read_json(path).items() if key != "bleu"})
    with pytest.raises(DataError, match="field bleu: is not among the scores"):
        good.run()
