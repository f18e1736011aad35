"""Readers of published questions in dialogues: small files of our own making in each form, and the real CANARD file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.published.questions.canard import read_canard_corpus
from finegrained_rlhf.conqrr.data import RewriteData
from finegrained_rlhf.core.errors import ConfigError, DataError


def write(path: Path, rows: Any) -> str:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


# QReCC ------------------------------------------------------------------------------------------------------------


def qrecc_rows() -> list[dict[str, Any]]:
    shared = {"Conversation_no": 7, "Conversation_source": "quac"}
    return [
        {
            **shared,
            "Turn_no": 3,
            "Context": ["What about her youth?", "Born in Oslo.", "And then?", ""],
            "Question": "When did she die?",
            "Rewrite": "When did Ada Berg die?",
            "Answer": "In 1990.",
            "Passages": ["https://b.org/ada_p0"],
        },
        {
            **shared,
            "Turn_no": 1,
            "Context": [],
            "Question": "What about her youth?",
            "Rewrite": "What about Ada Berg's youth?",
            "Answer": "Born in Oslo.",
            "Passages": ["https://a.org/ada_p1", "https://a.org/ada_p1"],
        },
        {
            **shared,
            "Turn_no": 2,
            "Context": ["What about her youth?", "Born in Oslo."],
            "Question": "And then?",
            "Rewrite": "And then, after Ada Berg's youth?",
            "Answer": "",
            "Passages": ["https://a.org/ada_p12"],
        },
        {
            "Conversation_no": 8,
            "Conversation_source": "nq",
            "Turn_no": 1,
            "Context": [],
            "Question": "Who wrote it?",
            "Rewrite": "",
            "Answer": "Nobody.",
            "Passages": [],
        },
    ]


def shared_task(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {"Rewrite": "Truth_rewrite", "Answer": "Truth_answer", "Passages": "Truth_passages"}
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


@pytest.mark.parametrize("form", [list, shared_task])
def test_qrecc(form: Any, tmp_path: Path) -> None:
    reading = RewriteData(write(tmp_path / "q.json", form(qrecc_rows())), "qrecc").read()
    first, second, third, alone = reading.examples
    assert [example.id for example in reading.examples] == ["7_1", "7_2", "7_3", "8_1"]
    assert first.question == "What about Ada Berg's youth?" and first.gold == ("https://a.org/ada_p1",)
    assert second.history == ("What about Ada Berg's youth?", "Born in Oslo.")
    assert second.context == "And then? [SEP] Born in Oslo. [SEP] What about Ada Berg's youth?"
    assert third.context == "When did she die? [SEP] And then? [SEP] Born in Oslo. [SEP] What about Ada Berg's youth?"
    assert (second.answer, second.question, third.answer) == (None, "And then?", "In 1990.")
    assert [example.topic_shift for example in reading.examples] == [None, False, True, None]
    assert (alone.question, alone.rewrite, alone.source) == ("Who wrote it?", None, "nq")
    assert reading.report()["dialogues"] == 2 and not reading.notes


def test_qrecc_without_passages_and_with_another_beginning(tmp_path: Path) -> None:
    """The original files have no gold passages; a history that begins elsewhere stays as it is and is counted."""
    rows = [{key: value for key, value in row.items() if key != "Passages"} for row in qrecc_rows()]
    rows[0]["Context"][0] = "Something else?"
    reading = RewriteData(write(tmp_path / "q.json", rows), "qrecc").read()
    assert reading.examples[2].history[0] == "Something else?"
    assert reading.notes == {"history begins with another question than the first": 1}
    assert {example.topic_shift for example in reading.examples} == {None}


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"Context": ["alone"]}, "Context", "question, answer"),
        ({"Context": None}, "Context", "list"),
        ({"Question": ""}, "Question", "empty"),
        ({"Turn_no": 2}, "Turn_no", "turn 2 of conversation 7 occurs twice"),
        ({"Turn_no": "two"}, "Turn_no", "whole number from 1"),
        ({"Conversation_no": None}, "Conversation_no", "expected text"),
        ({"Rewrite": 5}, "Rewrite or Truth_rewrite", "expected text"),
        ({"Passages": [5]}, r"Passages or Truth_passages\[0\]", "expected text"),
    ],
)
def test_broken_records_of_qrecc(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    rows = qrecc_rows()
    rows[2].update(change)
    if change == {"Turn_no": 2}:
        rows[1]["Turn_no"] = 2
    with pytest.raises(DataError, match=rf"q.json, record 2, field {field}: .*{problem}"):
        RewriteData(write(tmp_path / "q.json", rows), "qrecc").read()


@pytest.mark.parametrize("key", ["Context", "Question", "Rewrite", "Answer", "Turn_no", "Conversation_no"])
def test_missing_fields_of_qrecc(key: str, tmp_path: Path) -> None:
    rows = qrecc_rows()
    del rows[1][key]
    with pytest.raises(DataError, match=rf"record 1, field {key}: missing field"):
        RewriteData(write(tmp_path / "q.json", rows), "qrecc").read()


@pytest.mark.parametrize("format", ["qrecc", "canard", "cast"])
@pytest.mark.parametrize(("content", "problem"), [("{}", "expected a JSON array"), ("[]", "holds no question")])
def test_files_without_questions(format: Any, content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(content)
    with pytest.raises(DataError, match=f"q.json: {problem}"):
        RewriteData(str(tmp_path / "q.json"), format).read()
    with pytest.raises(DataError, match=r"record 0.*expected an object, got int"):
        RewriteData(write(tmp_path / "q.json", [3]), format).read()


# CANARD -----------------------------------------------------------------------------------------------------------


def canard_rows() -> list[dict[str, Any]]:
    questions = ["What broke?", "When?", "Why?", "Who knows?"]
    answers = ["The band", "I don't know.", "I don't know."]
    rewrites = ["What broke up?", "When did the band break up?", "Why did it?", "Who knows about the band?"]
    rows = []
    for i, question in enumerate(questions):
        said = [text for pair in zip(questions[:i], answers[:i], strict=True) for text in pair]
        rows.append(
            {
                "History": ["Frank Zappa", "Disbandment", *said],
                "QuAC_dialog_id": "C_1",
                "Question": question,
                "Question_no": i + 1,
                "Rewrite": rewrites[i],
            }
        )
    return rows


def test_canard(tmp_path: Path) -> None:
    reading, passages = read_canard_corpus(write(tmp_path / "c.json", canard_rows()))
    assert [example.answer for example in reading.examples] == ["The band", "I don't know.", "I don't know.", None]
    assert [example.gold for example in reading.examples] == [("C_1_1",), ("C_1_2",), ("C_1_2",), ()]
    assert [passage.contents for passage in passages] == [
        "Frank Zappa, Disbandment The band",
        "Frank Zappa, Disbandment I don't know.",
    ]
    assert reading.examples[0].question == "What broke up?"
    about = ("Frank Zappa", "Disbandment")
    assert reading.examples[0].published == (*about, "What broke?")
    assert reading.examples[1].published == (*about, "What broke?", "The band", "When?")
    assert reading.examples[2].context == "Why? [SEP] I don't know. [SEP] When? [SEP] The band [SEP] What broke up?"
    assert [example.topic_shift for example in reading.examples] == [None, False, False, False]
    assert reading.notes == {'answered "I don\'t know."': 2}


def test_canard_without_unknown_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", canard_rows())
    reading, passages = read_canard_corpus(path, "drop")
    assert [example.answer for example in reading.examples] == ["The band", None, None, None]
    assert [passage.id for passage in passages] == ["C_1_1"]
    assert [example.topic_shift for example in reading.examples] == [None, False, False, False]
    assert reading.examples[2].history[3] == "I don't know."
    assert RewriteData(path, "canard", unknown="drop").read() == reading


def test_parts_of_canard(tmp_path: Path) -> None:
    rows = [{**row, "QuAC_dialog_id": f"C_{i}"} for i in range(200) for row in canard_rows()]
    path = write(tmp_path / "c.json", rows)
    parts = {part: RewriteData(path, "canard", part=part).read() for part in ("train", "dev", "test")}
    names = {part: {example.dialogue for example in reading.examples} for part, reading in parts.items()}
    assert sorted(name for found in names.values() for name in found) == sorted(f"C_{i}" for i in range(200))
    assert 10 <= len(names["dev"]) <= 30 and 25 <= len(names["test"]) <= 55
    assert parts["dev"].skipped == {"turn of another part": 800 - 4 * len(names["dev"])}
    assert parts["dev"].notes == {'answered "I don\'t know."': 2 * len(names["dev"])}
    corpora = [read_canard_corpus(path, part=part)[1] for part in ("all", "dev")]
    assert corpora[0] == corpora[1] and len(corpora[0]) == 2  # one article and section: the answers are the same


def test_a_turn_that_is_not_in_the_file_takes_the_answer_before_it_along(tmp_path: Path) -> None:
    rows = canard_rows()
    del rows[1]
    reading = RewriteData(write(tmp_path / "c.json", rows), "canard").read()
    assert [example.answer for example in reading.examples] == [None, "I don't know.", None]


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        (
            {"History": ["Frank Zappa", "Disbandment", "What broke?"]},
            "History",
            r"1 questions with answers .4 texts., got 3",
        ),
        ({"History": ["Other", "Disbandment", "What broke?", "x"]}, "History", "another article or section"),
        ({"Question_no": 3}, "Question_no|History", "expected article, section and 2 questions"),
        ({"Rewrite": None, "Question": " "}, "Question", "white space"),
        ({"QuAC_dialog_id": ""}, "QuAC_dialog_id", "empty"),
    ],
)
def test_broken_records_of_canard(change: dict[str, Any], field: str, problem: str, tmp_path: Path) -> None:
    rows = canard_rows()
    rows[1].update(change)
    with pytest.raises(DataError, match=rf"c.json, record 1, field ({field}): .*{problem}"):
        RewriteData(write(tmp_path / "c.json", rows), "canard").read()


def test_duplicates_and_missing_fields_of_canard(tmp_path: Path) -> None:
    rows = canard_rows()
    with pytest.raises(DataError, match="record 4, field Question_no: question 2 of C_1 occurs twice"):
        RewriteData(write(tmp_path / "c.json", [*rows, copy.deepcopy(rows[1])]), "canard").read()
    for key in rows[0]:
        broken = copy.deepcopy(rows)
        del broken[2][key]
        with pytest.raises(DataError, match=f"record 2, field {key}: missing field"):
            RewriteData(write(tmp_path / "c.json", broken), "canard").read()


def test_the_published_canard_file(shared_data: Path) -> None:
    """Counts that a look at the raw file gives: 2,780 questions of 400 dialogues, all but the last ones answered."""
    path = shared_data / "canard" / "dev.json"
    reading, passages = read_canard_corpus(path)
    report = reading.report()
    assert (report["examples"], report["dialogues"], report["answers"], report["rewrites"]) == (2780, 400, 2380, 2780)
    assert report["gold"] == 2380 and not report["skipped"]
    assert report["notes"] == {'answered "I don\'t know."': 365}
    assert len({passage.id for passage in passages}) == len(passages) == len({p.contents for p in passages})
    texts = {passage.id: passage.text for passage in passages}
    assert all(texts[example.gold[0]] == example.answer for example in reading.examples if example.gold)
    answered = RewriteData(str(path), "canard", unknown="drop").read()
    assert answered.report()["answers"] == 2015
    assert [example.topic_shift for example in answered.examples].count(False) == 2380  # each keeps to its section


# TREC CAsT --------------------------------------------------------------------------------------------------------

TOPICS_2019 = [
    {
        "number": 31,
        "title": "cancer",
        "description": "…",
        "turn": [
            {"number": 1, "raw_utterance": "What is throat cancer?"},
            {"number": 2, "raw_utterance": "Is it treatable? "},
        ],
    },
    {"number": 32, "turn": [{"number": 1, "raw_utterance": "Tell me about sharks."}]},
]
TOPICS_2020 = [
    {
        "number": 81,
        "turn": [
            {
                "number": 1,
                "raw_utterance": "How much is one?",
                "manual_rewritten_utterance": "How much is a Lamborghini?",
                "automatic_rewritten_utterance": "How much is one?",
                "manual_canonical_result_id": "MARCO_1",
            },
            {
                "number": 2,
                "raw_utterance": "And a Ferrari?",
                "manual_rewritten_utterance": "How much is a Ferrari?",
                "manual_canonical_result_id": "CAR_2",
            },
        ],
    }
]


def test_cast_2019(tmp_path: Path) -> None:
    resolved = tmp_path / "resolved.tsv"
    resolved.write_text("31_1\tWhat is throat cancer?\n31_2\tIs throat cancer treatable?\n")
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("31_2 0 CAR_a 1\n31_2 0 MARCO_b 4\n31_2 0 MARCO_c 0\n32_1 0 MARCO_d 2\n")
    path = write(tmp_path / "t.json", TOPICS_2019)
    reading = RewriteData(path, "cast", rewrites=str(resolved), qrels=str(qrels)).read()
    first, second, third = reading.examples
    assert [example.id for example in reading.examples] == ["31_1", "31_2", "32_1"]
    assert second.rewrite == "Is throat cancer treatable?" and second.gold == ("MARCO_b", "CAR_a")
    assert second.history == ("What is throat cancer?", "")
    assert second.context == "Is it treatable? [SEP] What is throat cancer?"
    assert (third.rewrite, third.answer, third.source) == (None, None, "trec")
    assert reading.notes["no resolved question"] == reading.notes["no relevant passage judged"] == 1
    assert first.gold == ()
    assert second.grades == {"CAR_a": 1, "MARCO_b": 4} and third.grades == {"MARCO_d": 2} and not first.grades
    strict = RewriteData(path, "cast", rewrites=str(resolved), qrels=str(qrels), min_relevance=3).read()
    assert strict.examples[1].gold == ("MARCO_b",) and strict.examples[1].grades == second.grades
    with pytest.raises(ConfigError, match="min_relevance: expected at least 1, got 0"):
        RewriteData(path, "cast", qrels=str(qrels), min_relevance=0)


def test_cast_2020(tmp_path: Path) -> None:
    reading = RewriteData(write(tmp_path / "t.json", TOPICS_2020), "cast").read()
    first, second = reading.examples
    assert first.question == "How much is a Lamborghini?" and first.gold == ("MARCO_1",)
    assert second.history == ("How much is a Lamborghini?", "") and second.gold == ("CAR_2",)


@pytest.mark.parametrize(
    ("topics", "record", "problem"),
    [
        ([TOPICS_2020[0], TOPICS_2020[0]], "81", "field number: topic 81 occurs twice"),
        ([{"number": 5}], "5", "field turn: missing field"),
        ([{"number": 5, "turn": [{"number": 1}]}], "5", r"field turn\[0\].raw_utterance: missing field"),
        (
            [{"number": 5, "turn": TOPICS_2020[0]["turn"][::-1]}],
            "5",
            r"field turn\[1\]: expected turns in rising order",
        ),
    ],
)
def test_broken_topics(topics: Any, record: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"t.json, record {record}, {problem}"):
        RewriteData(write(tmp_path / "t.json", topics), "cast").read()


def test_broken_companions_of_topics(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", TOPICS_2019)
    beside = tmp_path / "beside.txt"
    beside.write_text("31_1 What?\n")
    with pytest.raises(DataError, match="beside.txt, record 0: expected TOPIC_TURN, a tab"):
        RewriteData(path, "cast", rewrites=str(beside)).read()
    with pytest.raises(DataError, match="beside.txt:1: expected 4 columns"):
        RewriteData(path, "cast", qrels=str(beside)).read()
    with pytest.raises(DataError, match="no such file"):
        RewriteData(path, "cast", qrels=str(tmp_path / "absent")).read()


def test_settings_belong_to_their_format() -> None:
    with pytest.raises(ConfigError, match="format: expected one of jsonl, qrecc, canard, cast, cast22, ikat, topiocqa"):
        RewriteData("x", "quac")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="qrels belongs to format 'cast'"):
        RewriteData("x", "qrecc", qrels="y")
    with pytest.raises(ConfigError, match="part: expected one of all"):
        RewriteData("x", "canard", part="valid")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one of keep, drop"):
        RewriteData("x", "canard", unknown="maybe")  # type: ignore[arg-type]
