"""The table of DSTC11: BM25's rows are measured on the held-out parts, the model's are read from its evaluations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tables_toy import write_settings

from finegrained_lab.experiments.dialki.dstc11 import LEXICAL, Dstc11Table, lexical_scores
from finegrained_lab.published.dialogues.dstc11 import dstc11_part, read_dstc11
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.dialogue.records import Turn

SENTENCES = ("The pool is cold.", "Breakfast was great.", "Staff speak French.")
ASKED = ("How cold is the pool?", "Was breakfast any good?", "Which languages do they speak?", "Can I bring my dog?")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty dialogues about one hotel; gold is the sentence of the asked number, the last question has the first."""
    path = tmp_path_factory.mktemp("dstc11")
    reviews = {str(i): {"sentences": {"0": words}} for i, words in enumerate(SENTENCES)}
    logs, labels = [], []
    for i in range(40):
        turns = [("U", f"Hello, I am guest {i}."), ("S", "Breakfast?"), ("U", ASKED[i % 4])]
        logs.append([{"speaker": speaker, "text": text} for speaker, text in turns])
        snippet = {"domain": "hotel", "entity_id": 1, "doc_type": "review", "doc_id": i % 4 % 3, "sent_id": 0}
        labels.append({"target": True, "response": "Yes.", "knowledge": [snippet]})
    content = {"logs": logs, "labels": labels, "knowledge": {"hotel": {"1": {"name": "INN", "reviews": reviews}}}}
    for name, value in content.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def table(folder: Path, data: Path, scores: dict[int, float]) -> Dstc11Table:
    for seed, score in scores.items():
        root = folder / f"seed_{seed}"
        write_json(root / "experiment.json", {"seed": seed, "settings": {"data": str(data)}})
        for run in ("dialki", "multi_sentence"):
            systems = [run, f"{run}_joint"] if run == "dialki" else [run]
            for system, part in ((system, part) for system in systems for part in ("dev", "test")):
                found = {"exact_match": score, "f1": score + 0.1, "passage_accuracy": score + 0.2}
                write_json(root / f"evaluation/{system}_{part}/evaluation.json", {"groups": {"all": found}})
                answers = [{"exact_match": right} for right in (1.0, 0.0)]
                write_jsonl(root / f"evaluation/{system}_{part}/answers.jsonl", answers)
            write_settings(root / run, seed)
            write_jsonl(root / run / "metrics.jsonl", [{"step": 1, "time/step_s": 30.0}])
            row = {"step": 1, "exact_match": score, "passage_accuracy": score, "time/validate_s": 30.0}
            write_jsonl(root / run / "eval.jsonl", [row])
            score -= 0.1
    return table_of(folder, list(scores))


def table_of(folder: Path, seeds: list[int]) -> Dstc11Table:
    return Dstc11Table(str(folder / "dstc11.json"), "the command", str(folder), seeds, chosen="On dev.")


def test_bm25_by_hand(data: Path) -> None:
    """It finds what shares a word with the last turn; "languages" and "dog" share none and go to the first sentence."""
    examples = read_dstc11(data).examples
    found = lexical_scores(examples, "bm25_last_turn")
    assert found == {
        "examples": 40, "exact_match": 1.0, "f1": 1.0, "passage_accuracy": 1.0, "exact_match_error": 0.0
    }  # fmt: skip
    assert lexical_scores(examples, "bm25_snowball_last_turn") == found
    two = [example for example in examples if example.turns[-1].text == ASKED[3]]
    assert (
        lexical_scores(two, "bm25_last_two_turns")["exact_match"] == 0.0
    )  # the agent's "Breakfast?" draws it to the second one
    assert lexical_scores(two, "bm25_last_two_turns")["examples"] == 10


def test_rows_and_page(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = table(tmp_path, data, {0: 0.5, 1: 0.7}).run()
    openings = [Turn("user", f"Hello, I am guest {i}.") for i in range(40)]
    assert result["examples"] == {
        part: sum(dstc11_part((turn,)) == part for turn in openings) for part in ("test", "dev")
    }
    assert result["examples"]["test"] > 0 and result["examples"]["dev"] > 0
    assert result["summary"]["dialki"]["exact_match"]["mean"] == pytest.approx(0.6)
    assert result["summary"]["bm25_last_turn"]["exact_match"] == {"mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0}
    assert result["summary"]["multi_sentence"]["exact_match"]["mean"] == pytest.approx(0.5)
    gap = result["differences"]["systems"]["dialki"]["exact_match"]
    assert gap["mean"] == pytest.approx(-0.4) and (gap["lower"], gap["seeds"]) == (2, 2)
    page = (tmp_path / "dstc11.md").read_text()
    assert json.loads((tmp_path / "dstc11.json").read_text())["rows"] == result["rows"]
    assert "-0.400 ± 0.100 (lower in 2 of 2)" in page and "4.0 minutes" in page and page in capsys.readouterr().out
    assert page == Dstc11Table(str(tmp_path / "dstc11.json"), "", str(tmp_path), (), chosen="").page(result)
    errors = [row["exact_match_error"] for row in result["rows"] if row["system"] == "dialki"]
    assert errors == pytest.approx([0.5, 0.5])  # of one right and one wrong answer


def test_only_what_was_run_has_a_row(data: Path, tmp_path: Path) -> None:
    """BM25 needs no run; a run that some seeds lack is a mistake, not a shorter row."""
    result = table(tmp_path, data, {0: 0.5, 1: 0.7}).run()
    named = {row["system"] for row in result["rows"]}
    assert {"dialki", "dialki_joint", "multi_sentence", "bm25_snowball_all_turns"} <= named
    missing = result["not_run"]
    assert "multi_sentence_all_gold" in missing and "dialki_all_gold_joint" in missing and not named & set(missing)
    assert "without a row: `dialki_all_gold`, `dialki_all_gold_joint`" in (tmp_path / "dstc11.md").read_text()
    shutil.rmtree(tmp_path / "seed_1" / "dialki")
    shutil.rmtree(tmp_path / "seed_1" / "evaluation")
    with pytest.raises(DataError, match="seed_1"):
        table_of(tmp_path, [0, 1]).run()
    for seed in (0, 1):
        for run in ("dialki", "multi_sentence"):
            shutil.rmtree(tmp_path / f"seed_{seed}" / run, ignore_errors=True)
    alone = table_of(tmp_path, [0, 1]).run()
    assert set(alone["summary"]) == set(LEXICAL) and "BM25 alone" in (tmp_path / "dstc11.md").read_text()


def test_a_missing_evaluation_is_one_clear_error(data: Path, tmp_path: Path) -> None:
    made = table(tmp_path, data, {0: 0.5})
    (tmp_path / "seed_0/evaluation/dialki_dev/evaluation.json").unlink()
    with pytest.raises(DataError, match="dialki_dev"):
        made.run()
