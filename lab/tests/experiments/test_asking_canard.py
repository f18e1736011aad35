"""Citations by gold on CANARD: which answers are known, where they stand, and the table on two articles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dense_toy import save_encoder

from finegrained_lab.experiments.asking import CanardAskTable
from finegrained_lab.experiments.asking.canard import NOTHING, read_turns, write_articles
from finegrained_rlhf.core.errors import DataError

TALKS = {
    ("A", "Old Mill", "Pool"): ["How cold is it?", "The pool is  cold", "Who swims?", NOTHING, "Why?", "Nobody knows."],
    ("B", "Tarn Lodge", "Garden"): ["What is there?", "The garden has bees.", "Is it big?", "It is big."],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"History": [article, section, *said[: 2 * i]], "QuAC_dialog_id": name, "Question_no": i + 1,
         "Question": said[2 * i], "Rewrite": f"{said[2 * i]} ({article})"}
        for (name, article, section), said in TALKS.items()
        for i in range(len(said) // 2)
    ]  # fmt: skip
    (tmp_path / "dev.json").write_text(json.dumps(rows[::-1]))
    return tmp_path / "dev.json"


def test_answers_stand_where_they_are_quoted(data: Path, tmp_path: Path) -> None:
    turns = read_turns(data)
    assert {turn.answer for turn in turns} == {
        "The pool is  cold",
        NOTHING,
        "The garden has bees.",
    }  # the last: unknown
    places = write_articles(turns, tmp_path / "docs")
    assert {turn.answer for turn in places} == {"The pool is  cold", "The garden has bees."}
    for turn, (file, (start, end)) in places.items():
        text = (tmp_path / "docs" / file).read_text(encoding="utf-8")
        assert text[start:end] == " ".join(turn.answer.split()) and text[end] in ".\n"
    data.write_text(json.dumps([{"History": ["A"]}]))
    with pytest.raises(DataError, match="record 0"):
        read_turns(data)


def test_rows_by_form_of_the_question(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = str(save_encoder(tmp_path / "encoder"))
    table = CanardAskTable(
        str(tmp_path / "t.json"), "run", data=str(data), encoder=encoder, reranker=encoder,
        directory=str(tmp_path / "w"), chosen="No.",
    )  # fmt: skip
    result = table.run()
    rows = {(row["question"], row["row"]): row for row in result["rows"]}
    assert len(rows) == 18 and result["turns"] == {"answered": 2, "other": 1} and result["documents"] == 2
    assert rows["with its topic", "bm25"]["document"] == [1.0, 1.0, 1.0]
    assert rows["question", "bm25"]["refused_other"] is None
    assert rows["rewritten by people", "bm25"]["refused_other"] is not None
    assert "2 documents with 2 answers; 2 turns" in (tmp_path / "t.md").read_text()
    capsys.readouterr()
