"""The DialDoc shared task's file: rows, SQuAD v2's scores by hand, and our own figures from the file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dialki_files import write_doc2dial_files
from dialki_toy import save_bert, tiny_dialki

from finegrained_lab.published.dialogues.doc2dial import read_doc2dial
from finegrained_lab.published.dialogues.shared_task import read_shared_task, score_shared_task
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialki.jobs import EvaluateDialki, IdentifyKnowledge
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn
from finegrained_rlhf.runtime.process_config import ProcessConfig

ONE = ProcessConfig("fp32", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_doc2dial_files(tmp_path_factory.mktemp("shared"))
    save_bert(path / "bert", layers=1)
    tiny_dialki(path / "bert").save(path / "model")
    return path


def example(name: str, *references: str) -> DialogueExample:
    passages = (Passage("p", "", ("x",)),)
    return DialogueExample(name, (Turn("user", "?"),), passages, (Knowledge(0, 0, 0),), references=references)


def test_scores_by_hand() -> None:
    examples = [example("a", "The red mill."), example("b", "old inn and bridge"), example("c", "x")]
    found = score_shared_task({"a": "red mill", "b": "the old inn", "c": "y", "not asked": "x"}, examples)
    assert found == {"exact": pytest.approx(100 / 3), "f1": pytest.approx(100 * (1 + 4 / 6 + 0) / 3), "total": 3}
    assert score_shared_task({"a": ""}, [example("a", "The.")])["exact"] == 100  # no word: the empty answer
    with pytest.raises(DataError, match="record b, field prediction_text: has no prediction"):
        score_shared_task({"a": "red mill", "c": "y"}, examples)
    with pytest.raises(DataError, match="no dialogue names its gold"):
        score_shared_task({}, [])


def test_the_file_of_an_evaluation_gives_its_figures(folder: Path, tmp_path: Path) -> None:
    data = str(folder / "doc2dial_dial_validation.json")
    EvaluateDialki(
        str(folder / "model"), data, str(tmp_path / "out"), "doc2dial",
        plots=False, processes=ONE, shared_task=str(tmp_path / "task.json"),
    ).run()  # fmt: skip
    result = json.loads((tmp_path / "out/evaluation.json").read_text())
    rows = json.loads((tmp_path / "task.json").read_text())
    examples = read_doc2dial(data).examples
    assert [row["id"] for row in rows] == [one.id for one in examples] and rows[0]["id"] == "validationA0_1"
    assert all(set(row) == {"id", "prediction_text", "no_answer_probability"} for row in rows)
    assert {row["no_answer_probability"] for row in rows} == {0.0}
    groups, task = result["groups"]["all"], result["shared_task"]
    assert task["total"] == groups["examples"] == 16
    assert 0 < task["f1"] == pytest.approx(100 * groups["f1"])
    assert task["exact"] == pytest.approx(100 * groups["exact_match"])
    two = examples[1]  # spans of two sections: one reference, from the first to the last
    assert len(two.gold) == 2 and two.references == ("the door is green . the roof is white . ",)
    gold = {one.id: one.references[0] for one in examples}
    assert score_shared_task(gold, examples) == {"exact": 100.0, "f1": 100.0, "total": 16}


def test_knowledge_is_identified_into_the_same_file(folder: Path, tmp_path: Path) -> None:
    """With the turns of a blind set, and as an evaluation writes it."""
    data, model = folder / "doc2dial_dial_test.json", str(folder / "model")
    blind = json.loads(data.read_text())
    for dialogues in blind["dial_data"]["house"].values():
        for dialogue in dialogues:
            dialogue["turns"] = dialogue["turns"][:3]
    (tmp_path / "blind.json").write_text(json.dumps(blind))
    for name, source in (("all", data), ("blind", tmp_path / "blind.json")):
        words: dict[str, Any] = {"output": str(tmp_path / "found.jsonl"), "shared_task": str(tmp_path / f"{name}.json")}
        documents = str(folder / "doc2dial_doc.json")
        IdentifyKnowledge(model, str(source), format="doc2dial", documents=documents, processes=ONE, **words).run()
    EvaluateDialki(
        model, str(data), str(tmp_path / "out"), "doc2dial",
        plots=False, processes=ONE, shared_task=str(tmp_path / "evaluated.json"),
    ).run()  # fmt: skip
    evaluated, identified = (read_shared_task(tmp_path / f"{name}.json") for name in ("evaluated", "all"))
    assert evaluated == identified == read_shared_task(tmp_path / "blind.json") and len(evaluated) == 16


def test_mistakes_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shared_task belongs to format 'doc2dial', the format is 'jsonl'"):
        EvaluateDialki("m", "d", "o", shared_task="x.json")
    with pytest.raises(ConfigError, match="shared_task belongs to format 'doc2dial', the format is 'wow'"):
        IdentifyKnowledge("m", "d", format="wow", shared_task="x.json")
    row = {"id": "a", "prediction_text": "x", "no_answer_probability": 0.0}
    for rows, message in (
        ({}, r"field \(file\): expected a list"),
        ([row, row], r"field \[1\]\.id: 'a' occurs twice"),
        ([{"id": "a"}], r"field .*prediction_text"),
        ([{**row, "prediction_text": 1}], r"field \[0\]\.prediction_text: expected"),
    ):
        (tmp_path / "bad.json").write_text(json.dumps(rows))
        with pytest.raises(DataError, match=rf"bad\.json.*{message}"):
            read_shared_task(tmp_path / "bad.json")
