"""The table of DialogueWorld: BM25 is measured, models are read, controls stand beside the rows of the thesis."""

from __future__ import annotations

from pathlib import Path

import pytest
from tables_toy import write_settings

from finegrained_lab.experiments.dialki.dialogue_world import KINDS, LEXICAL, RUNS, DialogueWorldTable
from finegrained_lab.worlds.dialogue.make import MakeDialogueWorld
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_json, write_jsonl


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two seeds; every run answers one in ten dialogues more than the run before it, seed 1 one in ten less."""
    for seed in (0, 1):
        at = tmp_path / f"seed_{seed}"
        sizes = {"documents": 8, "unseen_documents": 4, "train": 0, "dev": 0, "test": 60, "unseen": 20}
        MakeDialogueWorld(str(at / "world"), seed=seed, **sizes).run()
        for number, run in enumerate(RUNS):
            for part in ("test", "unseen"):
                names = [row["id"] for row in read_jsonl(at / "world" / f"{part}.jsonl")]
                right = [i % 20 < number + 2 - seed for i in range(len(names))]
                exact = sum(right) / len(right)
                found = {"exact_match": exact, "f1": exact, "passage_accuracy": exact}
                folder = at / "evaluation" / f"{run}_{part}"
                write_json(folder / "evaluation.json", {"groups": {"all": found}})
                rows = [
                    {"id": name, "exact_match": float(is_right)} for name, is_right in zip(names, right, strict=True)
                ]
                write_jsonl(folder / "answers.jsonl", rows)
            write_settings(at / run, seed)
            write_jsonl(at / run / "metrics.jsonl", [{"step": 1, "time/step_s": 30.0}])
            row = {"step": 1, "exact_match": 0.5, "passage_accuracy": 0.6, "time/validate_s": 30.0}
            write_jsonl(at / run / "eval.jsonl", [row])
    return tmp_path


def table(root: Path) -> DialogueWorldTable:
    return DialogueWorldTable(str(root / "table.json"), "python it", str(root), [0, 1], chosen="")


def test_rows_differences_with_errors_and_the_claims(root: Path) -> None:
    result = table(root).run()
    assert [row["system"] for row in result["rows"]] == [name for name in (*LEXICAL, *RUNS) for _ in (0, 1)]
    exact = {(row["system"], row["seed"]): row["exact_match"] for row in result["rows"]}
    assert (exact["next_only", 0], exact["next_only", 1], exact["history", 0]) == (0.1, 0.05, 0.15)
    gap = result["differences"]["systems"]["history"]["exact_match"]
    assert gap["mean"] == pytest.approx(0.05) and gap["error"] == pytest.approx(0.0)
    for row in result["rows"]:  # the kinds of the last turns make up all dialogues
        counts = [
            r["kinds"][-1] for r in read_jsonl(root / f"seed_{row['seed']}/world/world.jsonl") if r["split"] == "test"
        ]
        by_kind = sum(row[kind] * counts.count(kind.removeprefix("exact_")) for kind in KINDS) / len(counts)
        assert by_kind == pytest.approx(row["exact_match"])
    lexical = [row for row in result["rows"] if row["system"] in LEXICAL]
    assert all(row["exact_match"] < 0.3 for row in lexical) and {row["system"] for row in lexical} == set(LEXICAL)
    claims = {claim["claim"]: claim for claim in result["claims"]}
    assert claims["the history loss adds to the next loss"]["holds_in"] == 2
    assert claims["labels of all turns are a little better"]["holds_in"] == 0
    page = (root / "table.md").read_text()
    assert "± its standard error" in page and "labels_random" in page and (root / "table_curves.svg").is_file()


def test_answers_of_another_world_are_named(root: Path) -> None:
    write_jsonl(root / "seed_0/evaluation/all_test/answers.jsonl", [{"id": "test-99999", "exact_match": 1.0}])
    with pytest.raises(DataError, match=r"world\.jsonl, record test-99999: is no dialogue of this world"):
        table(root).run()
