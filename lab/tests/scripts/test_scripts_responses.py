"""From dialogues to BLEU in four commands, as short as they can be, and the table of several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_lab.worlds.dialogue.dialogues import DialogueWorldConfig
from finegrained_lab.worlds.dialogue.make import MakeDialogueWorld
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyBertConfig, TinyT5Config

pytestmark = pytest.mark.scripts


def script(name: str, *arguments: str) -> str:
    done = run_script(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small world, tiny models, and the first three commands."""
    path = tmp_path_factory.mktemp("chain")
    config = DialogueWorldConfig(questions=(2, 3), echo=1.0)
    sizes = {"documents": 4, "train": 4, "dev": 2, "test": 3, "unseen": 0}
    MakeDialogueWorld(str(path), answers="all", world=config, **sizes).run()
    (path / "words.txt").write_text("user: agent: knowledge: passage: |\n")
    MakeTinyModels(
        data=[path / "corpus.txt", path / "words.txt"],
        output_dir=path,
        t5=TinyT5Config(32, 32, 1, 2),
        bert=TinyBertConfig(32, 32, 1, 2),
    ).run()
    script(
        "train_dialki",
        "experiment=dialki/dialogue_world",
        f"data={path}/train.jsonl",
        f"validation_data={path}/dev.jsonl",
        f"model={path}/bert",
        f"output_dir={path}/dialki",
        "total_steps=1",
        "batches.batch_size=2",
    )
    said = script(
        "make_response_data",
        f"data={path}/train.jsonl",
        f"validation_data={path}/dev.jsonl",
        "knowledge=span_and_passage",
        f"output_dir={path}/prompts",
    )
    assert f"-> {path}/prompts/train.json" in said
    script(
        "train_sft",
        "experiment=dialki/dialogue_world_generator",
        f"data={path}/prompts/train.json",
        f"validation_data={path}/prompts/dev.json",
        f"policy.path={path}/t5",
        f"output_dir={path}/generator",
        "total_steps=2",
        "batch_size=2",
    )
    return path


def answers(path: Path, name: str, *more: str) -> str:
    return script(
        "generate_responses",
        f"checkpoint={path}/generator",
        "knowledge=span_and_passage",
        f"input={path}/test.jsonl",
        f"output={path}/{name}.jsonl",
        "max_new_tokens=12",
        "batch_size=2",
        *more,
    )


def test_the_fourth_command_gives_bleu(chain: Path) -> None:
    printed = answers(chain, "one", f"dialki={chain}/dialki")
    metrics, rows = read_json(chain / "one.metrics.json"), read_jsonl(chain / "one.jsonl")
    dialogues = read_jsonl(chain / "test.jsonl")
    agent = [turn["text"] for row in dialogues for turn in row["turns"] if turn["role"] == "agent"]
    assert [row["reference"] for row in rows] == agent and metrics["scored"] == len(agent)
    assert 0 <= metrics["bleu"] <= 100 and "bleu " in printed and "version:" in metrics["bleu_signature"]
    assert 0 <= metrics["knowledge_passage_accuracy"] <= 1


def test_mistakes_are_one_line(chain: Path) -> None:
    for arguments, message in (
        ((f"checkpoint={chain}/generator", "knowledge=spans"), "knowledge: expected one of none"),
        (("checkpoint=/nowhere", "knowledge=none", f"input={chain}/test.jsonl"), "/nowhere"),
    ):
        done = run_script("generate_responses", *arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
