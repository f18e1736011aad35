"""Prompts from every kind of file, and from a data set of the Hub in the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from chat_toy import talk
from hub_toy import put_into_cache
from huggingface_hub import constants
from pyarrow import parquet

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.prompt_files import Message, PromptInput, PromptSource, read_prompt_file

ROWS: list[dict[str, Any]] = [
    {"id": "plain", "text": "the cat"},
    {"id": "asked", "prompt": "the dog"},
    {"id": "answered", "prompt": "the dog", "completion": "ran"},
    {"id": "talk", "messages": talk("who ran", "the dog", "who sat", answer="the cat")},
    {"id": "open", "prompt": talk("who ran")},
    {"id": "both", "prompt": talk("who ran"), "completion": talk("", answer="the dog")[1:], "answer": ["a dog"]},
]
READ = [
    PromptInput("plain", "the cat"),
    PromptInput("asked", "the dog"),
    PromptInput("answered", "the dog", {"references": ("ran",)}),
    PromptInput(
        "talk",
        "who ran\nthe dog\nwho sat",
        {"question": "who sat", "references": ("the cat",)},
        (Message("user", "who ran"), Message("assistant", "the dog"), Message("user", "who sat")),
    ),
    PromptInput("open", "who ran", {"question": "who ran"}, (Message("user", "who ran"),)),
    PromptInput(
        "both",
        "who ran",
        {"question": "who ran", "references": ("the dog", "a dog")},
        (Message("user", "who ran"),),
    ),
]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    parquet.write_table(pyarrow.table({key: [row.get(key) for row in rows] for key in keys}), path)


def of_one_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows whose columns have one type each, as tables want it."""
    return [row for row in rows if not isinstance(row.get("prompt"), str)]


@pytest.mark.parametrize(("name", "write"), [("rows.json", write_json), ("rows.jsonl", write_jsonl)])
def test_texts_and_conversations_in_json(tmp_path: Path, name: str, write: Callable[[Path, Any], None]) -> None:
    write(tmp_path / name, ROWS)
    assert read_prompt_file(tmp_path / name) == READ
    assert PromptSource(str(tmp_path / name)).files == {"path": tmp_path / name}


def test_questions_with_passages_in_an_array_are_prompts(tmp_path: Path) -> None:
    rows = [{"question": "Late?", "passages": [{"wikipage": "Shipping", "content": "Three days."}]}]
    write_json(tmp_path / "rows.json", rows)
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (read,) = read_prompt_file(tmp_path / "rows.json")
    assert [read] == read_prompt_file(tmp_path / "rows.jsonl") and read.metadata["question"] == "Late?"


def test_passages_beside_messages_are_read_and_none_are_made_up(tmp_path: Path) -> None:
    rows = [{"messages": talk("who ran"), "passages": given} for given in ([["Dog", "The dog ran."]], [])]
    write_jsonl(tmp_path / "rows.jsonl", [*rows, {"messages": talk("who ran")}])
    shown, none, unknown = (item.metadata for item in read_prompt_file(tmp_path / "rows.jsonl"))
    assert [passage.title for passage in shown["passages"]] == ["Dog"]
    assert none["passages"] == () and "passages" not in unknown


def test_prompts_as_real_toxicity_prompts_has_them(tmp_path: Path) -> None:
    """No references: what followed on the web is no answer. A prompt without a text is named."""
    row = {"challenging": False, "continuation": {"text": " ran.", "toxicity": 0.1}}
    write_jsonl(tmp_path / "rows.jsonl", [{**row, "prompt": {"text": "The cat", "toxicity": None}}] * 2)
    given = [PromptInput("record-0", "The cat"), PromptInput("record-1", "The cat")]
    assert read_prompt_file(tmp_path / "rows.jsonl") == given
    write_jsonl(tmp_path / "broken.jsonl", [{**row, "prompt": {"toxicity": 0.1}}])
    with pytest.raises(DataError, match="broken.jsonl, record 0, field prompt.text: missing field"):
        read_prompt_file(tmp_path / "broken.jsonl")


def test_parquet(tmp_path: Path) -> None:
    rows = of_one_kind(ROWS)
    write_parquet(tmp_path / "rows.parquet", rows)
    assert read_prompt_file(tmp_path / "rows.parquet") == [item for item in READ if item.id in {r["id"] for r in rows}]
    passages = [{"wikipage": "Ana", "content": "Ana is red."}]
    write_parquet(tmp_path / "qa.parquet", [{"question": "Who?", "passages": passages, "answer": ["Ana."]}])
    (found,) = read_prompt_file(str(tmp_path / "qa.parquet"))
    assert found.text == "question: Who? context: wikipage: Ana text: Ana is red." and found.id.startswith("qa-")
    assert found.metadata["passages"] == (Passage("", "Ana", ("Ana is red.",)),)
    assert found.metadata["references"] == ("Ana.",)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "tables")
    return tmp_path / "hub"


def test_a_data_set_of_the_hub(tmp_path: Path, cache: Path) -> None:
    rows = of_one_kind(ROWS)
    (tmp_path / "set/data").mkdir(parents=True)
    write_parquet(tmp_path / "set/data/train-00000-of-00001.parquet", rows)
    (tmp_path / "other").mkdir()
    write_parquet(tmp_path / "other/train.parquet", [{"question": "Who?"}])
    put_into_cache(cache, "org/other", tmp_path / "other", kind="datasets")
    put_into_cache(cache, "org/name", tmp_path / "set", kind="datasets", ref="v1")
    expected = [item for item in READ if item.id in {row["id"] for row in rows}]
    assert read_prompt_file("org/name@v1:train") == expected
    assert read_prompt_file("org/name@v1:train[:2]") == expected[:2]
    assert PromptSource("org/name@v1:train").files == {}
    for name, said in (
        ("org/name@v1:dev", "file org/name: split dev cannot be read"),
        ("org/name:train", "hf download org/name --repo-type dataset$"),
        ("org/other:train", "file org/other:train, record 0, field passages: missing field"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            read_prompt_file(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"chosen": "a", "rejected": "b"},
            r"field text: expected text.*\(fields present: chosen, rejected\)",
        ),
        ({"messages": []}, "field messages: expected at least one message"),
        ({"messages": "hi"}, "field messages: expected a list, got str"),
        ({"messages": [{"role": "user"}]}, r"field messages\[0\].content: missing field"),
        ({"messages": [{"role": "user", "content": 3}]}, r"field messages\[0\].content: expected text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "expected a part of type text, got 'image'"),
        ({"messages": talk("hi", answer="ho")[1:]}, "expected a message before the assistant's answer"),
        ({"messages": [*talk("hi", "ho"), *talk("hi", "ho")[1:]]}, "two turns of the assistant follow each other"),
        ({"messages": talk("hi", answer=" ")}, r"field messages\[1\].content: expected some text"),
        ({"prompt": talk("hi", "ho")}, "field prompt: ends with the assistant's turn"),
        ({"prompt": talk("hi"), "completion": talk("hi")}, "field completion: expected a text or one message"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [row])
    with pytest.raises(DataError, match=said) as caught:
        read_prompt_file(tmp_path / "rows.jsonl")
    assert str(tmp_path / "rows.jsonl") in str(caught.value) and "record 0" in str(caught.value)


def test_what_is_no_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_text("text")
    with pytest.raises(DataError, match="not a readable parquet file"):
        read_prompt_file(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="no such file"):
        read_prompt_file(tmp_path / "absent.parquet")


def test_a_record_of_qa_feedback_that_lacks_a_field_is_still_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "rows.json", [{"text": "question: who", "question": "who", "passages": []}])
    with pytest.raises(DataError, match="field answer: missing field"):
        read_prompt_file(tmp_path / "rows.json")


def test_an_array_takes_what_lines_take(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "text": "hello", "topic": "x"},
        {"text": "who ran", "answer": ["a dog"]},
        {"turns": ["who ran"], "passages": []},
        {"question": "who", "passages": [["lake", "cold."]]},
        {"question": "who", "passages": [["lake", "cold."]]},
    ]
    write_json(tmp_path / "rows.json", rows)
    write_jsonl(tmp_path / "rows.jsonl", rows)
    read = read_prompt_file(tmp_path / "rows.json")
    assert read == read_prompt_file(tmp_path / "rows.jsonl")
    assert read[1].metadata["references"] == ("a dog",) and read[4].id == f"{read[3].id}-2"


@pytest.mark.parametrize("first", ["text", "prompt"])
def test_what_is_no_text_is_not_passed_over(tmp_path: Path, first: str) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{first: False, "question": "who"}])
    with pytest.raises(DataError, match=f"field {first}: expected text, got bool"):
        read_prompt_file(tmp_path / "rows.jsonl")


def test_content_in_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "who "}, {"type": "text", "text": "ran"}]
    write_jsonl(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": parts}]}])
    assert read_prompt_file(tmp_path / "rows.jsonl")[0].text == "who ran"
