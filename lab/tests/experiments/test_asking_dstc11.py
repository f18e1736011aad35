"""Citations by gold on DSTC11 track 5: places of snippets, what is counted of a turn, and the table on two hotels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dense_toy import save_encoder

from finegrained_lab.experiments.asking.citations import Question, _summary, judged
from finegrained_lab.experiments.asking.dstc11 import Dstc11AskTable, question_of, write_folder
from finegrained_lab.published.dialogues.dstc11_track import EntityMatcher, Label, TrackTurn, read_track
from finegrained_rlhf.core.files import read_json

PLACE, OTHER = ("hotel-1.md", (10, 20)), ("hotel-1.md", (20, 30))
NAMES = {"1": "THE OLD MILL", "2": "TARN LODGE"}
REVIEWS = {
    "1": {"0": {"0": "The pool is cold.", "1": "Breakfast was  great."}, "1": {"0": "The stairs creak."}},
    "2": {"0": {"0": "The garden has bees."}},
}
FAQ = {"question": "Is parking free?", "answer": "Parking costs 4 pounds."}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    hotels = {
        key: {"name": name, "reviews": {d: {"sentences": of} for d, of in REVIEWS[key].items()}, "faqs": {"0": FAQ}}
        for key, name in NAMES.items()
    }
    logs, labels = [], []
    for i in range(60):
        turns = [("U", f"Hello from guest {i} of the Old Mill."), ("S", "Yes?"), ("U", "How cold is the pool?")]
        logs.append([{"speaker": speaker, "text": text} for speaker, text in turns])
        place = {"domain": "hotel", "entity_id": 1, "doc_type": "review", "doc_id": 0, "sent_id": 0}
        labels.append({"target": True, "response": "Cold.", "knowledge": [place]} if i % 3 else {"target": False})
    for name, value in {"logs": logs, "labels": labels, "knowledge": {"hotel": hotels}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


def test_every_snippet_stands_at_its_place(data: Path, tmp_path: Path) -> None:
    track = read_track(data)
    places = write_folder(track, tmp_path / "docs")
    texts = {snippet: " ".join(text.split()) for of in track.texts.values() for snippet, text in of.items()}
    assert set(places) == set(texts) and len(places) == 6
    for snippet, (file, (start, end)) in places.items():
        assert (tmp_path / "docs" / file).read_text(encoding="utf-8")[start:end] == texts[snippet]
    assert (tmp_path / "docs" / "hotel-1.md").read_text(encoding="utf-8").count("## ") == 2


def test_what_is_counted_of_a_turn_by_hand() -> None:
    question = Question("?", "one", (("hotel-1.md", (10, 20)),))
    touching, behind, other = ("hotel-1.md", (19, 30)), ("hotel-1.md", (20, 30)), ("hotel-2.md", (10, 20))
    found = judged(question, ("answer", touching, (touching, behind, other)))
    assert (found["first"], found["document"], found["cited"]) == (1, 1, 1)
    assert (found["right"], found["citations"], found["refused"]) == (1, 3, 0)
    found = judged(question, ("not in these documents", behind, ()))
    assert (found["first"], found["document"], found["cited"], found["refused"]) == (0, 1, 0, 1)
    found = judged(question, ("clarification", other, (touching,)))
    assert (found["document"], found["cited"], found["citations"]) == (0, 0, 0)  # what is asked back cites nothing


def test_turns_of_a_dialogue_are_drawn_together() -> None:
    right, wrong = ("answer", PLACE, (PLACE,)), ("answer", OTHER, (OTHER,))
    turns = [(Question("?", str(dialogue), (PLACE,)), right if dialogue % 2 else wrong) for dialogue in range(20)]
    apart = _summary([judged(*one) for one in turns], [judged(question, wrong) for question, _ in turns])
    turns = [(Question("?", str(number % 2), (PLACE,)), reply) for number, (_, reply) in enumerate(turns)]
    whole = _summary([judged(*one) for one in turns], [judged(question, wrong) for question, _ in turns])
    assert apart["first"][0] == apart["over"][0] == whole["first"][0] == whole["over"][0] == 0.5
    assert apart["first"][1:] == apart["over"][1:] == pytest.approx([0.3, 0.7], abs=0.06)
    assert whole["first"][1:] == whole["precise"][1:] == [0.0, 1.0]  # all of a dialogue is right, or nothing


def test_a_question_is_asked_of_the_entity_that_was_named_last() -> None:
    matcher = EntityMatcher({("hotel", number): name for number, name in NAMES.items()})
    turn = TrackTurn(0, ("Is Tarn Lodge nice?", "Yes.", "Is it quiet?"), Label(True))
    assert question_of(turn, matcher, "last turn") == "Is it quiet?"
    assert question_of(turn, matcher, "with its entity") == "Tarn Lodge: Is it quiet?"
    named = TrackTurn(0, ("Is Tarn Lodge nice?", "Is the Old Mill quiet?"), Label(True))
    assert question_of(named, matcher, "with its entity") == "Is the Old Mill quiet?"
    assert question_of(TrackTurn(0, ("Hello.",), Label(True)), matcher, "with its entity") == "Hello."


def test_rows_and_page(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder, output = str(save_encoder(tmp_path / "encoder")), tmp_path / "dstc11.json"
    table = Dstc11AskTable(
        str(output),
        "run",
        data=str(data),
        encoder=encoder,
        reranker=encoder,
        directory=str(tmp_path / "w"),
        chosen="No.",
    )
    result = table.run()
    rows = {(row["question"], row["row"]): row for row in result["rows"]}
    assert len(rows) == 12 and result["turns"]["answered"] > 0 and result["snippets"] == 6
    alone = rows["with its entity", "bm25"]
    assert alone["first"] == alone["precise"] == alone["document"] == [1.0, 1.0, 1.0]
    assert alone["refused"][0] == alone["refused_other"][0] == 0.0  # retrieval alone refuses nothing
    assert rows["last turn", "both"]["refused_other"] is None
    assert rows["last turn", "both"]["over"] == [0.0, 0.0, 0.0]
    assert set(result["milliseconds"]["ask, words"]) == {"bm25", "judge", "whole"}
    assert read_json(output)["rows"] == json.loads(json.dumps(result["rows"]))
    assert "| with its entity | ask, MiniLM and mpnet |" in output.with_suffix(".md").read_text()
    capsys.readouterr()
