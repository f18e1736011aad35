"""Readers of TopiOCQA, TREC CAsT 2021 and 2022 and TREC iKAT: small files of our own making in each format."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.conqrr.data import RewriteData
from finegrained_rlhf.core.errors import ConfigError, DataError


def write(path: Path, rows: Any) -> str:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


def topiocqa_rows() -> list[dict[str, Any]]:
    def row(turn: int, context: list[str], question: str, answer: str, article: str, passage: str) -> dict[str, Any]:
        return {
            "Conversation_no": 4,
            "Turn_no": turn,
            "Context": context,
            "Question": question,
            "Answer": answer,
            "Topic": article,
            "Topic_section": "History",
            "Rationale": "…",
            "is_nq": turn == 1,
            "Additional_answers": [],
            "Gold_passage": {"title": f"{article} [SEP] History", "text": "…", "id": passage},
        }

    said = ["who built the mill", "Ada", "where was she born", "UNANSWERABLE"]
    return [
        row(1, [], said[0], said[1], "Mill", "wiki:1"),
        row(3, said, "and the mill's age?", "90", "Mill", "wiki:3"),
        row(2, said[:2], said[2], said[3], "Ada", "wiki:2"),
    ]


CAST21 = [
    {
        "number": 106,
        "turn": [
            {
                "number": 1,
                "raw_utterance": "What are common mills?",
                "passage": "Wind mills are.",
                "manual_rewritten_utterance": "What are common kinds of mills?",
                "canonical_result_id": "MARCO_D5",
                "passage_id": 7,
                "automatic_rewritten_utterance": "x",
            },
            {"number": 2, "raw_utterance": "Why?", "passage": "Wind is cheap.", "canonical_result_id": "KILT_1"},
        ],
    }
]


def cast22_paths() -> list[dict[str, Any]]:
    def turn(number: str, text: str, response: str | None, *provenance: str) -> dict[str, Any]:
        said = {} if response is None else {"response": response, "provenance": list(provenance)}
        return {"number": number, "utterance": text, "manual_rewritten_utterance": f"{text} (mills)", **said}

    first = turn("1-1", "What are they?", "Mills.", "M-1", "M-2")
    return [
        {"number": 132, "turn": [first, turn("1-3", "Why?", "Wind.", "M-3")]},
        {
            "number": 132,
            "turn": [{**first, "response": "Wheels.", "provenance": ["M-2", "M-9"]}, turn("2-1", "Who?", None)],
        },
    ]


def ikat_topics() -> list[dict[str, Any]]:
    turns = [
        {
            "turn_id": 1,
            "utterance": "Can you find a diet?",
            "resolved_utterance": "Can you find a vegetarian diet?",
            "response": "Yes.",
            "ptkb_provenance": [1],
            "response_provenance": ["clueweb22-a:1", "clueweb22-b:2"],
        },
        {
            "turn_id": 2,
            "utterance": "Which?",
            "resolved_utterance": "",
            "response": "Ornish.",
            "response_provenance": [],
        },
    ]
    return [{"number": "9-1", "title": "Diet", "ptkb": {"1": "I'm vegetarian.", "2": "I cook."}, "turns": turns}]


# TopiOCQA ---------------------------------------------------------------------------------------------------------


def test_topiocqa(tmp_path: Path) -> None:
    """Ordered by turn; the article of turn 2 is new, that of turn 3 is the first one's; there are no rewrites."""
    reading = RewriteData(write(tmp_path / "t.json", topiocqa_rows()), "topiocqa").read()
    assert [example.id for example in reading.examples] == ["4_1", "4_2", "4_3"] and reading.entries == 1
    assert [example.gold for example in reading.examples] == [("wiki:1",), ("wiki:2",), ("wiki:3",)]
    assert [example.topic_shift for example in reading.examples] == [None, True, False]
    assert reading.examples[1].answer == "UNANSWERABLE" and reading.examples[1].history == ("who built the mill", "Ada")
    report = reading.report()
    assert (report["rewrites"], report["answers"], report["gold"], report["sources"]) == (0, 3, 3, {"topiocqa": 3})
    assert report["notes"] == {"no gold passage": 0}


def test_topiocqa_as_json_lines(tmp_path: Path) -> None:
    lines = tmp_path / "topiocqa_train.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in topiocqa_rows()), encoding="utf-8")
    whole = RewriteData(write(tmp_path / "t.json", topiocqa_rows()), "topiocqa").read()
    assert RewriteData(str(lines), "topiocqa").read().examples == whole.examples
    lines.write_text(json.dumps(topiocqa_rows()[0]) + '\n{"Conversation_no": 4}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"topiocqa_train\.jsonl, record 1.*Context"):
        RewriteData(str(lines), "topiocqa").read()


def test_a_file_of_cast_2022_read_as_cast_is_told_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"record 132, field turn\[0\]: a turn of CAsT 2022, which format cast22 reads"):
        RewriteData(write(tmp_path / "t.json", cast22_paths()), "cast").read()


def test_topiocqa_without_topic_or_passage(tmp_path: Path) -> None:
    """The article stands in the passage's title; without either, neither gold nor a shift is known."""
    rows = topiocqa_rows()
    for row in rows:
        del row["Topic"]
    rows[1]["Gold_passage"] = None
    reading = RewriteData(write(tmp_path / "t.json", rows), "topiocqa").read()
    assert [example.topic_shift for example in reading.examples] == [None, True, None]
    assert reading.examples[2].gold == () and reading.notes == {"no gold passage": 1}


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"Turn_no": "two"}, "Turn_no", "whole number from 1"),
        ({"Turn_no": 1}, "Turn_no", "turn 1 of conversation 4 occurs twice"),
        ({"Conversation_no": 1.5}, "Conversation_no", "expected text"),
        ({"Context": ["who built the mill"]}, "Context", "question, answer"),
        ({"Question": ""}, "Question", "empty"),
        ({"Answer": 90}, "Answer", "expected text"),
        ({"Gold_passage": "wiki:2"}, "Gold_passage", "expected an object"),
        ({"Gold_passage": {"title": "Mill"}}, "Gold_passage.id", "missing field"),
        ({"Gold_passage": {"id": 2}}, "Gold_passage.id", "expected text"),
    ],
)
def test_broken_records_of_topiocqa(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    rows = topiocqa_rows()
    rows[1].update(change)
    with pytest.raises(DataError, match=rf"t.json, record 1, field {field}: .*{problem}"):
        RewriteData(write(tmp_path / "t.json", rows), "topiocqa").read()


# TREC CAsT 2021 and 2022 ------------------------------------------------------------------------------------------


def test_cast_2021_has_answers(tmp_path: Path) -> None:
    """The passage of a canonical result is the answer; its document is gold, or what the judgements say."""
    path = write(tmp_path / "t.json", CAST21)
    one, two = RewriteData(path, "cast").read().examples
    assert (one.id, one.question, one.answer, one.gold) == (
        "106_1",
        "What are common kinds of mills?",
        "Wind mills are.",
        ("MARCO_D5",),
    )
    assert two.history == ("What are common kinds of mills?", "Wind mills are.") and two.rewrite is None
    (tmp_path / "q.txt").write_text("106_1 0 KILT_9 4\n106_1 0 MARCO_D5 0\n")
    judged = RewriteData(path, "cast", qrels=str(tmp_path / "q.txt")).read()
    assert judged.examples[0].gold == ("KILT_9",) and judged.examples[0].grades == {"KILT_9": 4}


def test_cast_2022_reads_shared_turns_once(tmp_path: Path) -> None:
    """The first turn stands in both paths: the first answer, the gold passages of both answers."""
    reading = RewriteData(write(tmp_path / "t.json", cast22_paths()), "cast22").read()
    assert [example.id for example in reading.examples] == ["132_1-1", "132_1-3", "132_2-1"] and reading.entries == 1
    first, why, who = reading.examples
    assert (first.question, first.answer, first.gold) == ("What are they? (mills)", "Mills.", ("M-1", "M-2", "M-9"))
    assert (why.turn, why.history, why.rewrite) == (2, ("What are they? (mills)", "Mills."), "Why? (mills)")
    assert (who.turn, who.history, who.answer, who.gold) == (2, ("What are they? (mills)", "Wheels."), None, ())
    assert reading.notes == {
        "turn of several paths of a topic, read once": 1,
        "answered otherwise in a later path": 1,
    }


def test_cast_2022_with_judgements(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("132_1-1 0 M-5 3\n132_1-1 0 M-6 1\n132_1-3 0 M-5 1\n")
    data = RewriteData(
        write(tmp_path / "t.json", cast22_paths()), "cast22", qrels=str(tmp_path / "q.txt"), min_relevance=2
    )
    reading = data.read()
    assert [example.gold for example in reading.examples] == [("M-5",), (), ()]
    assert reading.examples[0].grades == {"M-5": 3, "M-6": 1} and reading.notes["no relevant passage judged"] == 2
    assert set(data.files) == {"path", "qrels"}


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"number": None}, r"turn\[1\].number", "expected text"),
        ({"number": "1 3"}, r"turn\[1\].number", "expected a number"),
        ({"number": "1-1"}, r"turn\[1\].number", "turn 1-1 occurs twice in the path"),
        ({"utterance": " "}, r"turn\[1\].utterance", "white space"),
        ({"response": 3}, r"turn\[1\].response", "expected text"),
        ({"provenance": "M-3"}, r"turn\[1\].provenance", "list of texts"),
    ],
)
def test_broken_paths_of_cast_2022(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    paths = cast22_paths()
    paths[0]["turn"][1].update(change)
    with pytest.raises(DataError, match=rf"t.json, record 0, field {field}: .*{problem}"):
        RewriteData(write(tmp_path / "t.json", paths), "cast22").read()


def test_paths_that_contradict_each_other(tmp_path: Path) -> None:
    paths = cast22_paths()
    paths[1]["turn"][0]["manual_rewritten_utterance"] = "Something else"
    with pytest.raises(DataError, match="record 1, field turn: turn 132_1-1 differs from that of an earlier path"):
        RewriteData(write(tmp_path / "t.json", paths), "cast22").read()


# TREC iKAT --------------------------------------------------------------------------------------------------------


def test_ikat(tmp_path: Path) -> None:
    """What is known of the person stands in `published`; a blank resolved utterance is none."""
    reading = RewriteData(write(tmp_path / "t.json", ikat_topics()), "ikat").read()
    one, two = reading.examples
    assert (one.id, one.dialogue, one.question) == ("9-1_1", "9-1", "Can you find a vegetarian diet?")
    assert one.gold == ("clueweb22-a:1", "clueweb22-b:2") and two.gold == ()
    assert (
        two.history == ("Can you find a vegetarian diet?", "Yes.") and two.rewrite is None and two.answer == "Ornish."
    )
    assert two.published == ("I'm vegetarian.", "I cook.", "Can you find a diet?", "Yes.", "Which?")
    assert reading.notes == {"no resolved utterance": 1}
    (tmp_path / "q.txt").write_text("9-1_2 0 clueweb22-c:1 2\n9-1_2 0 clueweb22-d:1 -1\n")
    judged = RewriteData(str(tmp_path / "t.json"), "ikat", qrels=str(tmp_path / "q.txt")).read().examples
    assert judged[0].gold == () and judged[1].gold == ("clueweb22-c:1",) and judged[1].grades == {"clueweb22-c:1": 2}


def test_ikat_2025_is_the_same_under_other_names(tmp_path: Path) -> None:
    (topic,) = ikat_topics()
    names = {"utterance": "user_utterance", "response_provenance": "citations", "ptkb_provenance": "relevant_ptkbs"}
    later = [{names.get(key, key): value for key, value in turn.items()} for turn in topic.pop("turns")]
    renamed = [{**topic, "ptkb": list(topic["ptkb"].values()), "responses": later}]
    old = RewriteData(write(tmp_path / "old.json", ikat_topics()), "ikat").read()
    assert RewriteData(write(tmp_path / "new.json", renamed), "ikat").read() == old


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"turn_id": 0}, r"turns\[1\].turn_id", "whole number from 1"),
        ({"turn_id": 1}, r"turns\[1\]", "rising order, got 1"),
        ({"utterance": None}, r"turns\[1\].utterance", "expected text"),
        ({"resolved_utterance": 1}, r"turns\[1\].resolved_utterance", "expected text"),
        ({"response_provenance": [3]}, r"turns\[1\].response_provenance\[0\]", "expected text"),
    ],
)
def test_broken_turns_of_ikat(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    topics = ikat_topics()
    topics[0]["turns"][1].update(change)
    with pytest.raises(DataError, match=rf"t.json, record 9-1, field {field}: .*{problem}"):
        RewriteData(write(tmp_path / "t.json", topics), "ikat").read()


def test_broken_topics_of_ikat(tmp_path: Path) -> None:
    topics = ikat_topics()
    for change, problem in (
        ({"ptkb": "vegetarian"}, "record 9-1, field ptkb: expected a list of texts"),
        ({"ptkb": {"1": ""}}, "record 9-1, field ptkb.1: .*empty"),
        ({"number": True}, "record 0, field number: expected text"),
        ({"turns": {}}, "record 9-1, field turns: expected a list"),
    ):
        with pytest.raises(DataError, match=problem):
            RewriteData(write(tmp_path / "t.json", [{**topics[0], **change}]), "ikat").read()
    with pytest.raises(DataError, match="record 9-1, field number: topic 9-1 occurs twice"):
        RewriteData(write(tmp_path / "t.json", topics * 2), "ikat").read()


@pytest.mark.parametrize("format", ["topiocqa", "cast22", "ikat"])
def test_files_of_another_form(format: str, tmp_path: Path) -> None:
    for rows, problem in (
        ({}, "JSON array"),
        ([], "holds no question"),
        (["x"], "record 0, field .*expected an object"),
    ):
        with pytest.raises(DataError, match=problem):
            RewriteData(write(tmp_path / "t.json", rows), format).read()


@pytest.mark.parametrize("format", ["topiocqa", "cast22", "ikat"])
def test_needed_fields_are_needed(format: str, tmp_path: Path) -> None:
    rows = {"topiocqa": topiocqa_rows, "cast22": cast22_paths, "ikat": ikat_topics}[format]()
    needed = {"topiocqa": ("Conversation_no", "Turn_no", "Context", "Question", "Answer"), "cast22": ("number", "turn")}
    for key in needed.get(format, ("number", "turns")):
        broken = copy.deepcopy(rows)
        del broken[0][key]
        with pytest.raises(DataError, match=f"field {key}: missing field"):
            RewriteData(write(tmp_path / "t.json", broken), format).read()


def test_options_belong_to_formats() -> None:
    assert RewriteData.formats()[-3:] == ("cast22", "ikat", "topiocqa")
    with pytest.raises(
        ConfigError, match="qrels belongs to format 'cast' or 'cast22' or 'ikat', the format is 'topiocqa'"
    ):
        RewriteData("x", "topiocqa", qrels="y")
    with pytest.raises(ConfigError, match="rewrites belongs to format 'cast', the format is 'ikat'"):
        RewriteData("x", "ikat", rewrites="y")
