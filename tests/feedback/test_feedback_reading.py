import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import (
    load_examples,
    load_feedback,
    read_examples,
    read_feedback,
    to_dataset,
    write_examples,
    write_feedback,
)
from finegrained_rlhf.feedback.records import QAExample, SpanError, derived_id

EXAMPLE: dict[str, Any] = {
    "text": "question: How wide? context: wikipage: A lake text: It is wide.",
    "answer": ["3 km.", "Three."],
    "passages": [{"content": "It is wide. It is cold.", "wikipage": "A lake"}],
    "question": "How wide?",
}
FEEDBACK: dict[str, Any] = {
    "question": "How wide?",
    "passages": [["A lake", "It is 3 km wide.", "It is cold."], ["B", "Nothing."]],
    "gold": "It is 3 km wide.",
    "prediction 1": "It is 4 km wide, and cold.",
    "prediction 2": "It is cold.",
    "prediction 3": "Wide.",
    "prediction 4": "3 km 🙂",
    "feedback": {
        "errors": [
            {"error type": "Wrong-Grounding", "explanation": "3, not 4", "start": 0, "end": 16},
            {"error type": "Irrelevant", "start": 17, "end": 26},
        ],
        "missing-info": [{"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1, 2]}],
        "corrected-prediction": "It is 3 km wide.",
    },
    "preference": [0, 1, 2, 1, 0, 2],
}


def put(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `record` with the field at `path` (`a/b/0/c`) replaced, or removed where `value` is `...`."""
    record = copy.deepcopy(record)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    target: Any = record
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return record


def save(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["dev.json", "dev_feedback.json"])
def test_real_files_load_whole_and_come_back_key_for_key(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = shared_data / "qa_feedback" / name
    raw = json.loads(path.read_text(encoding="utf-8"))
    if name == "dev.json":
        examples = read_examples(path)
        ids = {example.id for example in examples}
        write_examples(tmp_path / name, examples)
    else:
        records = read_feedback(path)
        ids = {record.id for record in records}
        write_feedback(tmp_path / name, records)
    again = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert len(ids) == len(again) == 400
    assert again == raw
    assert [list(row) for row in again] == [list(row) for row in raw]


def test_the_two_real_files_share_ids(shared_data: Path) -> None:
    examples = {e.question: e.id for e in read_examples(shared_data / "qa_feedback/dev.json")}
    records = read_feedback(shared_data / "qa_feedback/dev_feedback.json")
    common = [record for record in records if record.question in examples]
    assert len(common) == 395
    assert all(examples[record.question] == record.id for record in common)


def test_example_by_hand(tmp_path: Path) -> None:
    (example,) = read_examples(save(tmp_path / "a.json", [EXAMPLE]))
    assert example.text == EXAMPLE["text"] and example.references == ("3 km.", "Three.")
    assert example.passages == (Passage("", "A lake", ("It is wide. It is cold.",)),)
    split = example.passages[0].resplit(lambda text: [(0, 11), (12, 23)])
    assert split == Passage("", "A lake", ("It is wide.", "It is cold.")) and split.text == example.passages[0].text


def test_feedback_by_hand(tmp_path: Path) -> None:
    (record,) = read_feedback(save(tmp_path / "a.json", [FEEDBACK]))
    assert record.feedback.errors == (SpanError(0, 16, "Wrong-Grounding", "3, not 4"), SpanError(17, 26, "Irrelevant"))
    assert record.feedback.missing_info[0].sentence_ids == (1, 2)
    assert record.predictions[3] == "3 km 🙂" and record.preferences == (0, 1, 2, 1, 0, 2)
    write_feedback(tmp_path / "b.json", [record])
    assert json.loads((tmp_path / "b.json").read_text(encoding="utf-8")) == [FEEDBACK]


def test_data_sets_have_the_published_columns(tmp_path: Path) -> None:
    examples = load_examples(save(tmp_path / "a.json", [EXAMPLE]))
    feedback = load_feedback(save(tmp_path / "b.json", [FEEDBACK, put(FEEDBACK, "feedback/errors", [])]))
    assert isinstance(examples, datasets.Dataset) and set(examples.column_names) == {"id", *EXAMPLE}
    assert set(feedback.column_names) == {"id", *FEEDBACK} and feedback.num_rows == 2
    assert feedback[0]["feedback"]["missing-info"][0]["sentence_id"] == [1, 2]
    with pytest.raises(DataError, match="at least one record"):
        to_dataset([])


def test_ids(tmp_path: Path) -> None:
    given = put(EXAMPLE, "id", "fw-7")
    path = save(tmp_path / "a.json", [EXAMPLE, given, EXAMPLE])
    examples = read_examples(path)
    own = derived_id(examples[0].question, examples[0].passages)
    assert [example.id for example in examples] == [own, "fw-7", f"{own}-2"]
    write_examples(tmp_path / "b.json", examples)
    assert [e.id for e in read_examples(tmp_path / "b.json")] == [own, "fw-7", f"{own}-2"]
    assert "id" not in json.loads((tmp_path / "b.json").read_text())[0]
    loose = [Passage("", "A lake", ("It is  wide.", "It is cold."))]
    assert derived_id("How wide?", loose) == own
    assert derived_id("How wide?", []) != own
    with pytest.raises(DataError, match=r"a\.json, record 1, field id: id 'fw-7' occurs twice"):
        read_examples(save(path, [given, given]))


BAD_EXAMPLES = [
    ("text", ..., "text", "missing field (fields present: answer, passages, question)"),
    ("text", "", "text", "empty"),
    ("text", 3, "text", "expected text, got int"),
    ("question", ..., "question", "missing field"),
    ("answer", ..., "answer", "missing field"),
    ("answer", [], "answer", "at least one reference"),
    ("answer", ["  "], "answer[0]", "white space"),
    ("answer", "3 km", "answer", "expected a list of texts, got str"),
    ("passages", {}, "passages", "expected a list of passages, got dict"),
    ("passages/0", ["A lake"], "passages[0]", "expected an object, got list"),
    ("passages/0/content", ..., "passages[0].content", "missing field"),
    ("passages/0/wikipage", None, "passages[0].wikipage", "expected text, got NoneType"),
    ("question", "lone \ud800", "question", "lone surrogate at character 5"),
    ("id", 7, "id", "expected text, got int"),
]
ERRORS, MISSING = "feedback/errors", "feedback/missing-info"
BAD_FEEDBACK = [
    ("question", ..., "question", "missing field"),
    ("passages", ..., "passages", "missing field"),
    ("passages/1", [], "passages[1]", "expected [title, sentence 1, …]"),
    ("passages/0/1", 5, "passages[0][1]", "expected text, got int"),
    ("gold", "", "gold", "empty"),
    ("prediction 2", ..., "prediction 2", "missing field"),
    ("prediction 1", "", "prediction 1", "empty"),
    ("prediction 3", " \n", "prediction 3", "white space"),
    ("feedback", [], "feedback", "expected an object, got list"),
    ("feedback/errors", ..., "feedback.errors", "missing field"),
    ("feedback/errors", {}, "feedback.errors", "expected a list, got dict"),
    (f"{ERRORS}/1", 3, "feedback.errors[1]", "expected an object, got int"),
    (f"{ERRORS}/0/start", ..., "feedback.errors[0].start", "missing field"),
    (f"{ERRORS}/0/start", -1, "feedback.errors[0].start", "span -1:16 starts before the text"),
    (f"{ERRORS}/0/start", 1.0, "feedback.errors[0].start", "expected a whole number, got 1.0"),
    (f"{ERRORS}/0/start", True, "feedback.errors[0].start", "expected a whole number, got True"),
    (f"{ERRORS}/0/start", "0", "feedback.errors[0].start", "expected a whole number, got '0'"),
    (f"{ERRORS}/1/end", 27, "feedback.errors[1].end", "ends after prediction 1, which has 26 characters"),
    (f"{ERRORS}/1/end", 10**30, "feedback.errors[1].end", "expected a whole number"),
    (f"{ERRORS}/1/end", 17, "feedback.errors[1].end", "span 17:17 is empty or reversed"),
    (f"{ERRORS}/1/end", 3, "feedback.errors[1].end", "span 17:3 is empty or reversed"),
    (f"{ERRORS}/0", {"error type": "Irrelevant", "start": 16, "end": 17}, "feedback.errors[0].start", "white space"),
    (f"{ERRORS}/0/error type", "Boring", "feedback.errors[0].error type", "unknown error type 'Boring'"),
    (f"{ERRORS}/0/error type", "Missing-Answer", "feedback.errors[0].error type", "expected one of Irrelevant"),
    (f"{ERRORS}/0/explanation", 4, "feedback.errors[0].explanation", "expected text, got int"),
    (f"{MISSING}/0/passage_id", 3, "feedback.missing-info[0].passage_id", "passage 3 does not exist, expected 1 to 2"),
    (f"{MISSING}/0/passage_id", 0, "feedback.missing-info[0].passage_id", "passage 0 does not exist"),
    (f"{MISSING}/0/passage_id", ..., "feedback.missing-info[0].passage_id", "missing field"),
    (f"{MISSING}/0/sentence_id", [3], "feedback.missing-info[0].sentence_id", "expected 0 (title) to 2"),
    (f"{MISSING}/0/sentence_id", [-1], "feedback.missing-info[0].sentence_id", "sentence -1 does not exist"),
    (f"{MISSING}/0/sentence_id", [], "feedback.missing-info[0].sentence_id", "at least one sentence"),
    (f"{MISSING}/0/sentence_id", 1, "feedback.missing-info[0].sentence_id", "list of whole numbers, got int"),
    (f"{MISSING}/0/error type", "Irrelevant", "feedback.missing-info[0].error type", "expected one of Missing-Answer"),
    ("feedback/corrected-prediction", 3, "feedback.corrected-prediction", "expected text"),
    ("preference", {}, "preference", "expected a list"),
    ("preference", [0, 1, 2, 1, 0], "preference", "expected 6 judgements (1v2 … 3v4), got 5"),
    ("preference", [0, 1, 2, 1, 0, 3], "preference[5]", "expected 0, 1 or 2, got 3"),
    ("preference/2", "1", "preference[2]", "expected a whole number, got '1'"),
]


@pytest.mark.parametrize(
    ("read", "record", "path", "value", "field", "problem"),
    [(read_examples, EXAMPLE, *case) for case in BAD_EXAMPLES]
    + [(read_feedback, FEEDBACK, *case) for case in BAD_FEEDBACK],
)
def test_a_broken_record_is_named(
    tmp_path: Path, read: Callable, record: dict[str, Any], path: str, value: Any, field: str, problem: str
) -> None:
    file = save(tmp_path / "bad.json", [put(record, "id", "fine"), put(record, path, value)])
    with pytest.raises(DataError) as caught:
        read(file)
    error = caught.value
    assert (error.file, error.record, error.field) == (file, 1, field)
    assert problem in error.problem and "\n" not in str(error)


@pytest.mark.parametrize("read", [read_examples, read_feedback])
def test_broken_files_are_named(tmp_path: Path, read: Callable) -> None:
    whole = json.dumps([EXAMPLE, FEEDBACK])
    path = tmp_path / "bad.json"
    with pytest.raises(DataError, match="bad.json: no such file"):
        read(path)
    for text, problem in [
        (whole[:-40], "truncated"),
        ("", "truncated"),
        ('{"question": 1}', "expected a JSON array of records, got dict"),
        ("[]", "holds no records"),
        ("[3]", "expected a JSON object, got int"),
    ]:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=problem):
            read(path)
    path.write_bytes(b'["\xff"]')
    with pytest.raises(DataError, match="not UTF-8"):
        read(path)


def test_odd_but_real_values_are_accepted(tmp_path: Path) -> None:
    """No passages, an empty correction, the title (sentence 0) as missing, a span up to the last character."""
    bare = put(put(put(FEEDBACK, "passages", []), MISSING, []), "feedback/corrected-prediction", "")
    title = put(FEEDBACK, f"{MISSING}/0/sentence_id", [0])
    assert len(read_feedback(save(tmp_path / "a.json", [bare, title]))) == 2
    assert read_examples(save(tmp_path / "b.json", [put(EXAMPLE, "passages", [])]))[0].passages == ()


def test_records_made_in_code_are_checked_too(tmp_path: Path) -> None:
    (record,) = read_feedback(save(tmp_path / "a.json", [FEEDBACK]))
    with pytest.raises(DataError, match="prediction 4: expected some text"):
        replace(record, predictions=(*record.predictions[:3], ""))
    with pytest.raises(DataError, match=r"expected 3 judgements \(1v2 … 2v3\), got 6"):
        replace(record, predictions=record.predictions[:3])
    with pytest.raises(DataError, match="expected feedback on an answer or a preference, got neither"):
        replace(record, feedback=None, preferences=(None,) * 6)
    with pytest.raises(DataError, match="at least one reference"):
        QAExample("1", "q", "t", (), ())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    (record,) = read_feedback(save(tmp_path / "a.json", [FEEDBACK]))

    def interrupted() -> Iterator[Any]:
        yield record
        raise KeyboardInterrupt

    path = save(tmp_path / "b.json", ["old"])
    with pytest.raises(KeyboardInterrupt):
        write_feedback(path, interrupted())
    assert json.loads(path.read_text()) == ["old"]
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", "b.json"}
