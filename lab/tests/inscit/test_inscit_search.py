"""What is searched for in a turn, ranked lists of all turns, and what a dense retriever learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
from inscit_toy import GOAT, MILK, OUTLINE, conversations

from finegrained_lab.published.inscit import EvaluateInscit, MakeDprData, RetrieveEvidence
from finegrained_lab.published.inscit.data import read_inscit, turns_of
from finegrained_lab.published.inscit.predictions import read_retrieved
from finegrained_lab.published.inscit.search import write_retrieved
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import build_store
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.runs import in_trec_order
from finegrained_rlhf.training.dpr.records import read_dpr_records

CONTEXT = ("who made it", "a goat", "and when")
TEXTS = {
    MILK["passage_id"]: "Cheese is made from milk.",
    GOAT["passage_id"]: "Goat cheese is made from the milk of goats.",
    OUTLINE["passage_id"]: "- History\n- Uses",
    "Milk:1": "Milk is made by cows; from milk one makes cheese.",
    "Age:3": "How old is old?",
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    write_json(tmp_path / "dev.json", conversations())
    corpus = [{"id": name, "title": "Cheese [SEP] Kinds", "text": text} for name, text in TEXTS.items()]
    write_jsonl(tmp_path / "corpus.jsonl", corpus)
    Bm25Config().build(str(tmp_path / "corpus.jsonl"), tmp_path / "index")
    named = {"data": "dev.json", "index": "index", "output": "found.json"}
    return {key: str(tmp_path / name) for key, name in named.items()}


def test_every_turn_is_searched_for_and_scored(files: dict[str, str]) -> None:
    assert RetrieveEvidence(**files, query="last_turn", k=3, batch_size=2).run() == 4
    rows = read_json(files["output"])
    assert [(row["conv_id"], row["turn_id"]) for row in rows][-1] == ("top3_dial12", 1)
    assert rows[1]["ctxs"][0]["id"] == GOAT["passage_id"] and rows[3]["ctxs"][0]["id"] == "Age:3"
    scores = [hit["score"] for hit in rows[0]["ctxs"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    found = EvaluateInscit(data=files["data"], baseline=None, predictions=_nothing(files), retrieved=files["output"])
    assert found.run()["retrieval"]["turns"] == 3


def _nothing(files: dict[str, str]) -> str:
    rows = []
    for name, talk in conversations().items():
        for number, turn in enumerate(talk["turns"], start=1):
            output = {"response": "", "evidence": []}
            rows.append({"conv_id": name, "turn_id": number, "context": turn["context"], "output": output})
    path = Path(files["data"]).parent / "nothing.json"
    write_json(path, rows)
    return str(path)


def test_records_for_a_dense_retriever_hold_no_gold_among_negatives(files: dict[str, str], tmp_path: Path) -> None:
    keys = {**files, "corpus": str(tmp_path / "corpus.jsonl"), "output": str(tmp_path / "dpr.jsonl")}
    assert MakeDprData(**keys, negatives=2).run() == 3
    rows = read_jsonl(keys["output"])
    assert [row["id"].rpartition("dial")[2] for row in rows] == ["24_1", "24_2", "12_1"]
    assert [passage["id"] for passage in rows[0]["positives"]] == [MILK["passage_id"], GOAT["passage_id"]]
    assert rows[0]["turns"] == ["What is cheese made from?"]
    assert rows[2]["positives"] == [
        {"id": OUTLINE["passage_id"], "title": "Cheese [SEP] Kinds", "text": "- History - Uses"}
    ]
    assert rows[0]["hard_negatives"][0]["id"] == "Milk:1"  # by the words of the evidence
    for row in rows:
        gold = {passage["id"] for passage in row["positives"]}
        others = [passage["id"] for kind in ("negatives", "hard_negatives") for passage in row[kind]]
        assert not gold & set(others) and len(row["negatives"]) <= 2
    build_store(Corpus(keys["corpus"]), tmp_path / "store", progress=False)
    MakeDprData(**{**keys, "output": str(tmp_path / "again.jsonl")}, negatives=2, store=str(tmp_path / "store")).run()
    assert read_jsonl(tmp_path / "again.jsonl") == rows


def test_what_cannot_be_searched_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="query: expected one of last_turn, .*, turns, recent_turns, got 'all'"):
        RetrieveEvidence(**files, query="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="k: expected at least 1, got 0"):
        RetrieveEvidence(**files, k=0)
    write_jsonl(tmp_path / "other.jsonl", [{"id": "Milk:1", "title": "", "text": "x"}])
    job = MakeDprData(**{**files, "output": str(tmp_path / "dpr.jsonl")}, corpus=str(tmp_path / "other.jsonl"))
    with pytest.raises(DataError, match="other.jsonl"):
        job.run()
    assert not (tmp_path / "dpr.jsonl").exists()
    talk = conversations()["top3_dial12"]
    talk["turns"][0]["labels"][0].update(responseType="noAnswerNoRelevantInfo", evidence=[])
    write_json(tmp_path / "bare.json", {"x": talk})
    with pytest.raises(DataError, match="no turn has evidence"):
        MakeDprData(**{**files, "data": str(tmp_path / "bare.json")}, corpus=str(tmp_path / "corpus.jsonl")).run()


def test_what_is_written_for_a_dense_retriever_can_be_read(files: dict[str, str], tmp_path: Path) -> None:
    blank = [{"id": f"Blank:{n}", "title": "Cheese is made of milk from goats", "text": " "} for n in range(3)]
    write_jsonl(tmp_path / "more.jsonl", [*read_jsonl(tmp_path / "corpus.jsonl"), *blank])
    Bm25Config().build(str(tmp_path / "more.jsonl"), tmp_path / "more")
    keys = {"data": files["data"], "index": str(tmp_path / "more"), "corpus": str(tmp_path / "more.jsonl")}
    MakeDprData(**keys, output=str(tmp_path / "dpr.jsonl"), negatives=3).run()
    first = read_dpr_records(tmp_path / "dpr.jsonl")[0]
    assert [one.id for one in first.hard_negatives][0] == "Milk:1"
    assert not any(one.id.startswith("Blank") for one in (*first.negatives, *first.hard_negatives))


def test_scores_keep_their_order(tmp_path: Path) -> None:
    write_json(tmp_path / "dev.json", conversations())
    turns = turns_of(read_inscit(tmp_path / "dev.json").conversations)
    close = [Hit("a", 0.12345678), Hit("b", 0.12345671), Hit("c", 0.12345664)]
    write_retrieved(tmp_path / "run.json", turns, [close] * len(turns))
    read = read_retrieved(tmp_path / "run.json", turns)
    assert [hit.id for hit in in_trec_order(read[turns[0].name])] == ["a", "b", "c"]
