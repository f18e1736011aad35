"""The shortest real runs of `finegrained train-dialki` and `finegrained identify-knowledge`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dialki_toy import save_bert, toy_examples
from safetensors.torch import load_file
from script_runs import rows, run_in_two_processes, run_script

from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.dialogue.records import Turn

pytestmark = pytest.mark.scripts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dialki")
    save_bert(path / "bert", layers=1)
    lines = []
    for example in toy_examples(5):
        answer = Turn("agent", "it is .", example.gold[0])
        lines.append(dialogue_row(example.id, (*example.turns, answer), example.passages))
    write_dialogues(path / "dialogues.jsonl", lines)
    return path


def train(folder: Path, output: Path, *more: str) -> list[str]:
    return [
        "train_dialki",
        f"data={folder}/dialogues.jsonl",
        f"validation_data={folder}/dialogues.jsonl",
        f"model={folder}/bert",
        f"output_dir={output}",
        "total_steps=2",
        "checkpoint_every=1",
        "dialki.inputs.max_length=160",
        "dialki.inputs.max_context=80",
        "dropout=0",
        "batches.batch_size=3",
        "batches.micro_batch_size=2",
        "batches.passages=2",
        "optimizer.warmup_steps=0",
        "optimizer.lr=1e-3",
        "optimizer.eps=1e-4",
        "processes.precision=fp32",
        *more,
    ]


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    done = run_script(*train(folder, folder / "run"))
    assert done.returncode == 0, done.stderr
    assert "training data: 10 dialogues" in done.stderr and "best at step" in done.stdout
    return folder / "run"


def test_a_run_and_its_files(trained: Path) -> None:
    assert [row["step"] for row in rows(trained / "metrics.jsonl")] == [1, 2]
    assert rows(trained / "eval.jsonl")[0].keys() >= {"score", "exact_match", "f1", "passage_accuracy"}
    names = {path.name for path in (trained / "model").iterdir()}
    assert {"config.json", "model.safetensors", "heads.safetensors", "dialki.json", "tokenizer.json"} <= names


@pytest.mark.parametrize("sharding", ["gradients", pytest.param("none", marks=pytest.mark.slow)])
def test_two_processes_train_what_one_does(folder: Path, trained: Path, tmp_path: Path, sharding: str) -> None:
    """The batch of 3 and the 9 validation dialogues do not divide by 2."""
    done = run_in_two_processes(*train(folder, tmp_path / "run"), f"processes.sharding={sharding}")
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(rows(tmp_path / "run/metrics.jsonl"), rows(trained / "metrics.jsonl"), strict=True):
        assert ours.pop("processes") == 2 and theirs.pop("processes") == 1
        assert ours == pytest.approx(theirs, abs=1e-3)
    for name in ("model", "heads"):
        start, one, two = (
            load_file(path / f"model/{name}.safetensors")
            for path in (
                trained / "checkpoints/step_0",
                trained / "checkpoints/step_2",
                tmp_path / "run/checkpoints/step_2",
            )
        )
        moved = max(float((one[key] - start[key]).abs().max()) for key in one)
        assert moved > 1e-4 and max(float((one[key] - two[key]).abs().max()) for key in one) < 0.05 * moved
    ours, theirs = (json.loads((path / "metrics.json").read_text()) for path in (tmp_path / "run", trained))
    assert ours["validation"]["all"]["examples"] == theirs["validation"]["all"]["examples"] == 9


def test_knowledge_of_a_file_and_of_one_dialogue(folder: Path, trained: Path, tmp_path: Path) -> None:
    script = "identify_knowledge"
    output = tmp_path / "found.jsonl"
    done = run_script(script, f"checkpoint={trained}", f"input={folder}/dialogues.jsonl", f"output={output}")
    assert done.returncode == 0, done.stderr
    found = rows(output)
    assert [row["id"] for row in found][:2] == ["d0-1", "d0-3"] and len(found) == 10
    (tmp_path / "page.md").write_text("# door\nthe door is red . the door is blue .\n\n# roof\nthe roof is white .\n")
    turns = "turns=['tell me the house','it is red .','tell me roof']"
    done = run_script(script, f"checkpoint={trained}", f"document={tmp_path}/page.md", turns)
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row["title"] in ("door", "roof") and row["text"].startswith("the ") and 0 < row["probability"] <= 1
    for arguments, message in (
        ((), "give input=FILE, or turns"),
        (("input=/nowhere",), "/nowhere: no such file"),
        ((f"input={tmp_path}/page.md", f"document={tmp_path}/page.md"), "either input, or turns and document"),
    ):
        done = run_script(script, f"checkpoint={trained}", *arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.needs("finegrained_lab")
def test_a_baseline_trains_and_answers_by_the_same_scripts(folder: Path, tmp_path: Path) -> None:
    settings = ("baseline=bertqa", "total_steps=1", "dialki.inputs.max_length=60", "dialki.inputs.max_context=20")
    done = run_script(*train(folder, tmp_path / "run", *settings, "dialki.windows.stride=16"))
    assert done.returncode == 0, done.stderr
    assert "BERTQA: best at step" in done.stdout
    output = tmp_path / "found.jsonl"
    script = "identify_knowledge"
    done = run_script(script, f"checkpoint={tmp_path}/run", f"input={folder}/dialogues.jsonl", f"output={output}")
    assert done.returncode == 0, done.stderr
    assert all(row["text"] and row["begin"] <= row["end"] for row in rows(output)) and len(rows(output)) == 10
