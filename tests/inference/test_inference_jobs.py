"""generate and sample_outputs: every kind of input, whole files only, the same samples however the work is cut."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.records import Prompt, Rollout
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.feedback.reading import read_examples, write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.inference.generator import load_policy
from finegrained_rlhf.inference.inputs import PromptInput, read_inputs
from finegrained_rlhf.inference.jobs import Generate, SampleOutputs
from finegrained_rlhf.models.tiny import TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.text.templates import task_text

PASSAGES = (Passage("", "Ana", ("The color of Ana is red.", "The job of Ana is pilot.")),)
EXAMPLES = [
    QAExample(f"q{i}", question, task_text(question, PASSAGES), ("The color of Ana is red.",), PASSAGES)
    for i, question in enumerate(["What is the color of Ana?", "What's the job, and the city, of Ana?", "Who?"])
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer([example.text for example in EXAMPLES])
    build_t5(tokenizer, TinyT5Config(d_model=32, d_ff=64), seed=1).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_examples(tmp_path / "data.json", EXAMPLES)
    return str(tmp_path / "data.json")


def read_texts(source: str | Path) -> list[tuple[str, str]]:
    return [(item.id, item.text) for item in read_inputs(source)]


def give_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


# What can be read --------------------------------------------------------------------------------------------------


def test_prompt_files_and_json_lines_give_ids_and_texts(data: str, tmp_path: Path) -> None:
    texts = [(example.id, example.text) for example in EXAMPLES]
    assert read_texts(data) == texts
    rows: list[dict[str, Any]] = [
        {"id": "a", "text": "raw"},
        {"text": "no id"},
        {"id": "q", "question": "Who?", "passages": [["Ana", "The color of Ana is red.", "The job of Ana is pilot."]]},
        {"question": "Who?", "passages": [{"wikipage": "Bo", "content": "Bo is tall."}]},
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    found = read_texts(tmp_path / "rows.jsonl")
    assert found[:3] == [("a", "raw"), ("record-1", "no id"), ("q", EXAMPLES[2].text)]
    assert found[3][1] == "question: Who? context: wikipage: Bo text: Bo is tall."


def test_inputs_keep_what_reward_models_read(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = read_examples(data)[0]
    known = {"question": example.question, "passages": example.passages, "references": example.references}
    assert read_inputs(data)[0] == PromptInput(example.id, example.text, known)
    passages = [["Ana", "The color of Ana is red.", "The job of Ana is pilot."]]
    write_jsonl(
        tmp_path / "rows.jsonl",
        [
            {"id": "a", "text": "as it is", "question": "Who?", "passages": passages},
            {"id": "b", "text": "as it is", "question": "Who?"},
            {"id": "c", "text": "as it is"},
        ],
    )
    judged = {"question": "Who?", "passages": PASSAGES}
    assert read_inputs(tmp_path / "rows.jsonl") == [
        PromptInput("a", "as it is", judged),
        PromptInput("b", "as it is"),
        PromptInput("c", "as it is"),
    ]
    give_standard_input(monkeypatch, b"Who?\n")
    assert read_inputs("-") == [PromptInput("line-1", "Who?")]


def test_standard_input_is_one_prompt_a_line_with_every_character_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    give_standard_input(monkeypatch, '\ufeffWhat\'s up, "doc"? é={x}\r\n\n  \n[1]: ok\n'.encode())
    assert read_texts("-") == [("line-1", 'What\'s up, "doc"? é={x}'), ("line-4", "[1]: ok")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "a"}', "record 0, field text: expected text, or question and passages"),
        ('{"id": 5, "text": "x"}', "field id: expected text"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "record 1, field id: id 'a' occurs twice"),
        ('{"question": "x"}', "field passages: missing field"),
        ('{"question": "x", "passages": [{"wikipage": "t"}]}', r"passages\[0\].content: missing field"),
        ('{"id": "a", "te', "truncated"),
        ("plain words", "input=- <"),
        ("", "holds no records"),
    ],
)
def test_a_broken_input_file_is_named_with_its_record(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad").write_text(content)
    with pytest.raises(DataError, match=message) as error:
        read_texts(tmp_path / "bad")
    assert str(tmp_path / "bad") in str(error.value)


def test_absent_files_and_empty_standard_input_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_texts(tmp_path / "absent")
    give_standard_input(monkeypatch, b"\n \n")
    with pytest.raises(DataError, match="standard input: holds no text"):
        read_texts("-")
    give_standard_input(monkeypatch, b"\xff")
    with pytest.raises(DataError, match="not UTF-8"):
        read_texts("-")


# generate ----------------------------------------------------------------------------------------------------------


def test_generate_writes_one_line_a_prompt(checkpoint: str, data: str, tmp_path: Path) -> None:
    output = tmp_path / "out" / "answers.jsonl"
    Generate(checkpoint, data, str(output), max_new_tokens=6, batch_size=2).run()
    answers = load_policy(checkpoint, device="cpu").generate([e.text for e in EXAMPLES], max_new_tokens=6)
    expected = [
        {"id": e.id, "prompt": e.text, "response": answer} for e, (answer,) in zip(EXAMPLES, answers, strict=True)
    ]
    assert read_jsonl(output) == expected
    assert [path.name for path in output.parent.iterdir()] == ["answers.jsonl"]


def test_generate_to_standard_output_numbers_the_samples(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_standard_input(monkeypatch, b"Who?\nWhat?\n")
    Generate(checkpoint, "-", "-", DecodingConfig(2, temperature=1.3, top_k=5), max_new_tokens=4).run()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["id"], row["sample"]) for row in rows] == [(f"line-{i}", k) for i in (1, 2) for k in (0, 1)]


def test_a_generation_that_fails_leaves_the_old_file_alone(
    checkpoint: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_text("old\n")
    decode, calls = FastEngine.decode, []

    def fail_at_second_batch(self: FastEngine, *args: Any, **settings: Any) -> Rollout:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(self, *args, **settings)

    monkeypatch.setattr(FastEngine, "decode", fail_at_second_batch)
    with pytest.raises(KeyboardInterrupt):
        Generate(checkpoint, data, str(output), max_new_tokens=4, batch_size=1).run()
    assert output.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "data.json"]


def test_answers_reach_the_file_batch_by_batch(
    checkpoint: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, lines = FastEngine.encode, []

    def count_lines(self: FastEngine, prompts: list[Prompt]) -> Any:
        written = [path for path in tmp_path.iterdir() if path.name.startswith(".answers")]
        lines.append(sum(len(path.read_text().splitlines()) for path in written))
        return encode(self, prompts)

    monkeypatch.setattr(FastEngine, "encode", count_lines)
    Generate(checkpoint, data, str(tmp_path / "answers.jsonl"), max_new_tokens=4, batch_size=1).run()
    assert lines == [0, 1, 2]


def test_a_checkpoint_without_model_is_one_clear_error(data: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model here"):
        Generate(str(tmp_path / "nothing"), data, str(tmp_path / "out.jsonl")).run()
    assert not (tmp_path / "out.jsonl").exists()


# sample_outputs ----------------------------------------------------------------------------------------------------


def test_samples_come_with_all_that_annotation_needs(checkpoint: str, data: str, tmp_path: Path) -> None:
    def sample(name: str, **settings: Any) -> list[Any]:
        SampleOutputs(checkpoint, data, str(tmp_path / name), max_new_tokens=8, **settings).run()
        return read_outputs(tmp_path / name)

    records = sample("a.jsonl", batch_size=2)
    assert [record.id for record in records] == ["q0", "q1", "q2"]
    assert all(len(record.outputs) == 4 and len(set(record.outputs)) > 1 for record in records)
    for record, example in zip(records, read_examples(data), strict=True):
        assert (record.question, record.passages, record.references, record.text) == (
            example.question,
            example.passages,
            example.references,
            example.text,
        )
    assert sample("b.jsonl", batch_size=1) == records
    assert sample("c.jsonl", seed=1) != records
    assert sample("d.jsonl", limit=1) == records[:1]
    assert [record.outputs for record in sample("e.jsonl", samples=2)] == [record.outputs[:2] for record in records]


def test_sampling_settings_are_checked_before_anything_is_loaded(data: str) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        SampleOutputs("nowhere", data, "out", temperature=0.0)
    with pytest.raises(ConfigError, match="limit"):
        SampleOutputs("nowhere", data, "out", limit=0)
    with pytest.raises(ConfigError, match="n >= 1"):
        SampleOutputs("nowhere", data, "out", samples=0)


def test_broken_data_is_named(checkpoint: str, tmp_path: Path) -> None:
    write_json(tmp_path / "data.json", [{"text": "x", "question": "x", "passages": []}])
    with pytest.raises(DataError, match="record 0, field answer: missing field"):
        SampleOutputs(checkpoint, str(tmp_path / "data.json"), str(tmp_path / "out.jsonl")).run()
    assert not (tmp_path / "out.jsonl").exists()
