"""INSCIT's files: read, refused, written, counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from inscit_toy import GOAT, conversations

from finegrained_lab.published.inscit.candidates import MakeIdentifierData
from finegrained_lab.published.inscit.data import read_inscit, read_known_inscit, turns_of, write_inscit
from finegrained_lab.published.inscit.evaluation import EvaluateInscit
from finegrained_lab.published.inscit.reader import MakeReaderInputs
from finegrained_lab.published.inscit.search import RetrieveEvidence
from finegrained_lab.published.inscit.types import MakeResponseTypes
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import build_store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "dev.json", conversations())
    return tmp_path / "dev.json"


def test_a_published_file_is_read_and_comes_back_from_our_own_lines(file: Path) -> None:
    reading = read_inscit(file)
    assert [one.id for one in reading.conversations] == ["food_level1_dial24", "top3_dial12"]
    turns = turns_of(reading.conversations)
    assert [turn.key for turn in turns] == [("food_level1_dial24", n) for n in (1, 2, 3)] + [("top3_dial12", 1)]
    assert turns[0].labels[0].passages == {"Types of cheese:19"} and len(turns[0].labels[0].evidence) == 2
    assert turns[0].agreed_type is None and turns[2].agreed_type == "noAnswerNoRelevantInfo"
    assert reading.conversations[0].continued_by(0) == (1,) and reading.conversations[0].continued_by(2) == ()
    assert reading.unknown_keys == {"turns.labels.extra": 1}
    write_inscit(file.with_name("own.jsonl"), reading.conversations)
    assert read_inscit(file.with_name("own.jsonl")).conversations == reading.conversations


def test_evidence_must_be_in_the_corpus_where_one_is_given(file: Path) -> None:
    known = {"Types of cheese:19", "Goat:2", "Cheese:0"}
    assert len(read_inscit(file, known).conversations) == 2
    with pytest.raises(DataError, match=r"'food_level1_dial24', turn 1, field labels\[1\].evidence\[1\].passage_id: "):
        read_inscit(file, known - {"Goat:2"})


@pytest.mark.parametrize("form", ["corpus", "store"])
def test_every_command_refuses_evidence_that_a_known_corpus_lacks(file: Path, tmp_path: Path, form: str) -> None:
    def known(name: str, ids: Iterable[str]) -> str:
        write_jsonl(tmp_path / f"{name}.jsonl", [{"id": id, "text": "text"} for id in ids])
        if form == "store":
            build_store(Corpus(tmp_path / f"{name}.jsonl"), tmp_path / name, progress=False)
        return str(tmp_path / (name if form == "store" else f"{name}.jsonl"))

    all_ids = ["Types of cheese:19", "Other:1", "Goat:2", "Cheese:0"]
    whole, part = known("whole", all_ids), known("part", all_ids[:2] + ["Cheese:0"])
    output = str(tmp_path / "out.json")
    write_json(tmp_path / "run.json", [])
    jobs: list[Callable[[str], Any]] = [
        lambda known: EvaluateInscit(data=str(file), baseline="last_turn", draws=0, known_passages=known),
        lambda known: EvaluateInscit(
            data=str(own), baseline="last_turn", train=str(file), draws=0, known_passages=known
        ),
        lambda known: MakeResponseTypes(str(file), output, known),
        lambda known: MakeReaderInputs(
            data=str(file), output=output, evidence="gold", task="response", known_passages=known
        ),
    ]
    own = tmp_path / "own.json"
    write_json(own, {"top3_dial12": conversations()["top3_dial12"]})
    problem = r"dev.json, .*'food_level1_dial24', turn 1, .*passage_id: 'Goat:2' is no passage of the corpus"
    for job in jobs:
        job(whole).run()
        with pytest.raises(DataError, match=problem):
            job(part).run()
    for other in (
        RetrieveEvidence(data=str(file), index="absent", output=output, known_passages=part),
        MakeIdentifierData(data=str(file), retrieved="absent.json", output=output, known_passages=part),
    ):
        with pytest.raises(DataError, match=problem):
            other.run()
    with pytest.raises(DataError, match="no such file"):
        read_known_inscit(file, str(tmp_path / "absent.jsonl"))


def turn(number: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda data: data["food_level1_dial24"]["turns"][number]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: turn(1)(d)["context"].pop(), "turn 2, field context: expected an odd number of utterances"),
        (lambda d: turn(1)(d)["context"].__setitem__(1, " "), r"turn 2, field context\[1\]: expected some text"),
        (lambda d: turn(1)(d).update(prevEvidence=[]), "turn 2, field prevEvidence: expected one list for each of 1"),
        (lambda d: turn(1)(d).update(labels=[]), "turn 2, field labels: expected at least one label"),
        (lambda d: turn(1)(d)["context"].__setitem__(0, "Why?"), "turn 2, field context: does not continue the turn"),
        (
            lambda d: turn(0)(d)["labels"][0].update(responseType="answer"),
            r"turn 1, field labels\[0\].responseType: expected one of directAnswer, .*, got 'answer'",
        ),
        (
            lambda d: turn(2)(d)["labels"][1].update(evidence=[GOAT]),
            r"turn 3, field labels\[1\].evidence: a response of type noAnswerNoRelevantInfo rests on nothing",
        ),
        (lambda d: turn(0)(d)["labels"][0].pop("response"), r"turn 1, field labels\[0\].response: missing field"),
        (lambda d: turn(0)(d)["labels"].__setitem__(0, 3), r"turn 1, field labels\[0\].\(label\): expected an object"),
        (
            lambda d: turn(0)(d)["labels"][0]["evidence"][0].pop("passage_id"),
            r"labels\[0\].evidence\[0\].passage_id: missing field",
        ),
        (lambda d: d["top3_dial12"].pop("seedArticle"), "conversation 'top3_dial12', field seedArticle: missing"),
        (lambda d: d["top3_dial12"].update(turns=[]), "conversation 'top3_dial12', field turns: expected at least one"),
        (lambda d: d.clear(), "expected at least one conversation"),
    ],
)
def test_what_cannot_be_names_conversation_turn_and_field(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    data = json.loads(json.dumps(conversations()))
    change(data)
    write_json(tmp_path / "bad.json", data)
    with pytest.raises(DataError, match=problem) as caught:
        read_inscit(tmp_path / "bad.json")
    assert str(caught.value).startswith(f"file {tmp_path / 'bad.json'}")


def test_files_that_are_none(tmp_path: Path) -> None:
    write_json(tmp_path / "list.json", [])
    with pytest.raises(DataError, match="expected one object of conversations by id"):
        read_inscit(tmp_path / "list.json")
    (tmp_path / "no_id.jsonl").write_text('{"turns": []}\n')
    with pytest.raises(DataError, match="record 0, field id: expected the id of a conversation"):
        read_inscit(tmp_path / "no_id.jsonl")
    (tmp_path / "twice.jsonl").write_text('{"id": "a"}\n{"id": "a"}\n')
    with pytest.raises(DataError, match="record a: occurs twice"):
        read_inscit(tmp_path / "twice.jsonl")
