"""Readers: what they are given, what they are taught to say, what is read from what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inscit_toy import GOAT, MILK, OUTLINE, conversations

from finegrained_lab.published.inscit import EvaluateInscit, MakeReaderInputs, ReadReaderOutputs
from finegrained_lab.published.inscit.data import with_gold
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.inscit.conversation import NO_INFORMATION
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import build_store

MILK_ID, GOAT_ID, OUTLINE_ID = (passage["passage_id"] for passage in (MILK, GOAT, OUTLINE))
TURNS = [("food_level1_dial24", 1), ("food_level1_dial24", 2), ("food_level1_dial24", 3), ("top3_dial12", 1)]
OTHER = "Sheep (animal):4"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Data, a retrieved list that names one passage which only the corpus has, and that corpus with its store."""
    write_json(tmp_path / "dev.json", conversations())
    rows = []
    for number, (name, turn) in enumerate(TURNS):
        ids = [OTHER, GOAT_ID] if number != 2 else [MILK_ID, OTHER]
        scored = [{"id": one, "score": 2.0 - place} for place, one in enumerate(ids)]
        rows.append({"conv_id": name, "turn_id": turn, "ctxs": scored})
    write_json(tmp_path / "retrieved.json", rows)
    corpus = [
        {"id": OTHER, "text": "Sheep give\nmilk.", "title": "Sheep [SEP] Milk"},
        {"id": "X", "text": "x", "title": ""},
    ]
    write_jsonl(tmp_path / "corpus.jsonl", corpus)
    build_store(Corpus(tmp_path / "corpus.jsonl"), tmp_path / "store", progress=False)
    named = {"data": "dev.json", "retrieved": "retrieved.json", "corpus": "corpus.jsonl", "output": "prompts.jsonl"}
    return {key: str(tmp_path / name) for key, name in named.items()}


def made(files: dict[str, str], **keys: Any) -> list[dict[str, Any]]:
    MakeReaderInputs(**{**files, **keys}).run()
    return read_jsonl(files["output"])


def ids(row: dict[str, Any]) -> list[str]:
    return [passage["id"] for passage in row["passages"]]


def test_earlier_evidence_comes_first_and_then_what_was_retrieved(files: dict[str, str], tmp_path: Path) -> None:
    rows = made(files)
    assert [row["id"] for row in rows] == [f"{name}_{turn}" for name, turn in TURNS]
    assert [ids(row) for row in rows] == [
        [OTHER, GOAT_ID],
        [MILK_ID, GOAT_ID, OTHER],
        [GOAT_ID, MILK_ID, OTHER],  # the newest turn's evidence before the older one's
        [OTHER, GOAT_ID],
    ]
    assert rows[1]["turns"] == ["What is cheese made from?", "Which cheese do you mean?", "Goat cheese."]
    assert rows[0]["passages"][0] == {"id": OTHER, "title": "Sheep|Milk", "text": "Sheep give milk."}
    assert rows[0]["answer"] == [
        "evidence: Types of cheese:19 answer: It is made from milk.",
        "evidence: Goat:2 | Types of cheese:19 answer: Which cheese do you mean?",
    ]
    assert rows[2]["answer"][0] == "evidence: answer: Sorry, I found nothing."
    assert rows == made(files, store=str(tmp_path / "store"))
    assert [ids(row) for row in made(files, earlier=False)][1] == [OTHER, GOAT_ID]
    assert [ids(row) for row in made(files, passages=1)][2] == [GOAT_ID]
    prompts = read_prompt_file(files["output"])
    assert prompts[1].metadata["question"].startswith("question 1: What is cheese made from? answer 1: Which")
    assert prompts[1].metadata["references"] == ("evidence: Goat:2 answer: From the milk of goats, of course.",)


def test_labels_types_and_given_evidence(files: dict[str, str], tmp_path: Path) -> None:
    rows = made(files, labels="all", types="oracle", add_gold=True, passages=2)
    assert [row["id"].rpartition("dial")[2] for row in rows] == ["24_1_1", "24_1_2", "24_2", "24_3_1", "24_3_2", "12_1"]
    assert rows[0]["turns"][-1] == "What is cheese made from? response type: direct answer"
    assert rows[1]["turns"][-1] == "What is cheese made from? response type: clarification"
    assert rows[1]["answer"][0].endswith("answer: Which cheese do you mean?")
    assert (
        ids(rows[0]) == [OTHER, MILK_ID] and ids(rows[1]) == [GOAT_ID, MILK_ID] and ids(rows[5]) == [OTHER, OUTLINE_ID]
    )

    write_jsonl(tmp_path / "types.jsonl", [{"id": f"{n}_{t}", "label": "noAnswerButRelevantInfo"} for n, t in TURNS])
    keys: dict[str, Any] = {"retrieved": None, "task": "response", "evidence": "gold"}
    gold = made(files, types=str(tmp_path / "types.jsonl"), **keys)
    assert [ids(row) for row in gold] == [[MILK_ID], [GOAT_ID], [], [OUTLINE_ID]]
    assert gold[3]["turns"] == ["How old is it? response type: no answer but relevant information"]
    assert gold[0]["answer"] == ["It is made from milk.", "Which cheese do you mean?"]


def test_gold_takes_the_place_of_the_last_others() -> None:
    assert with_gold(["a", "b", "c"], ["c"], 3) == ["a", "b", "c"]
    assert with_gold(["a", "b", "c"], ["d"], 3) == ["a", "b", "d"]
    assert with_gold(["a", "b", "c"], ["c", "d"], 3) == ["a", "c", "d"]
    assert with_gold([], ["c", "d", "e"], 2) == ["c", "d"]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"evidence": "gold"}, "retrieved or evidence: expected exactly one of them"),
        ({"retrieved": None}, "retrieved or evidence"),
        ({"retrieved": None, "evidence": "gold"}, "task=joint: a reader that is given its evidence answers alone"),
        ({"labels": "some"}, "labels: expected one of first, all, got 'some'"),
        ({"task": "both"}, "task: expected one of joint, response, got 'both'"),
        ({"passages": 0}, "passages: expected at least 1, got 0"),
        ({"corpus": None, "store": "x"}, "store: expected the corpus"),
    ],
)
def test_settings_that_do_not_go_together(files: dict[str, str], keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        MakeReaderInputs(**{**files, **keys})


def test_a_passage_that_is_nowhere_is_named(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"retrieved.json.*'Sheep \(animal\):4' is not in the data: name the corpus"):
        made(files, corpus=None)
    write_jsonl(tmp_path / "types.jsonl", [{"id": "food_level1_dial24_1", "label": "joke"}])
    with pytest.raises(DataError, match="record 0, field label: expected one of directAnswer"):
        made(files, types=str(tmp_path / "types.jsonl"))
    write_jsonl(tmp_path / "types.jsonl", [{"id": "food_level1_dial24_1", "label": "clarification"}])
    with pytest.raises(DataError, match="turn 'food_level1_dial24_2' has no type"):
        made(files, types=str(tmp_path / "types.jsonl"))
    assert not Path(files["output"]).exists()


def test_a_reader_that_says_what_it_was_taught_scores_as_the_labels_do(files: dict[str, str], tmp_path: Path) -> None:
    rows = made(files, add_gold=True)
    said = [{"id": row["id"], "response": row["answer"][0]} for row in rows]
    write_jsonl(tmp_path / "answers.jsonl", said)
    keys = {"data": files["data"], "inputs": files["output"], "responses": str(tmp_path / "answers.jsonl")}
    job = ReadReaderOutputs(**keys, output=str(tmp_path / "said.json"))
    assert job.run() == {"turns": 4, "unknown": 0, "repeated": 0, "unanswered": 0}
    scores = EvaluateInscit(data=files["data"], predictions=str(tmp_path / "said.json"), draws=0).run()
    assert scores["rg_f1"] == pytest.approx(100.0) and scores["bleu"] == pytest.approx(100.0)
    assert scores["pi_f1"] == pytest.approx(75.0)  # the turn whose gold is empty counts 0, as published

    write_jsonl(tmp_path / "answers.jsonl", [*said[1:], {"id": said[0]["id"], "response": "evidence: Q:1 | Goat:2"}])
    assert job.run() == {"turns": 4, "unknown": 1, "repeated": 0, "unanswered": 1}
    assert read_json(tmp_path / "said.json")[0]["output"] == {
        "response": NO_INFORMATION,
        "evidence": [{"passage_id": GOAT_ID}],
    }
    alone = ReadReaderOutputs(**keys, output=str(tmp_path / "alone.json"), task="response")
    alone.run()
    assert read_json(tmp_path / "alone.json")[2]["output"]["evidence"] == [{"passage_id": one} for one in ids(rows[2])]
    write_jsonl(tmp_path / "answers.jsonl", said[1:])
    with pytest.raises(DataError, match=r"answers.jsonl.*has nothing for turn 'food_level1_dial24_1'"):
        job.run()
    write_jsonl(tmp_path / "answers.jsonl", [*said, said[0]])
    with pytest.raises(DataError, match=r"record 4, field id: .* has a response already"):
        job.run()
