"""From sampled answers to reward models with two simulated people, in one command; and what goes on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from script_runs import rows, run_again_after_a_kill, run_in_two_processes, run_script

from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples, read_feedback

pytestmark = pytest.mark.scripts

KINDS = ("relevance", "factuality", "completeness")


def done(finished: Any) -> str:
    assert finished.returncode == 0, finished.stderr
    return str(finished.stdout)


def one_command(smoke: Path, folder: Path) -> list[str]:
    return [
        "pipeline=factworld/annotation",
        f"output_dir={folder}/run",
        f"settings.outputs={folder}/outputs.jsonl",
        f"settings.encoder={smoke}/prepared/models/longformer",
        "settings.overlap=1",
        "settings.reward_model_steps=2",
        "seed=3",
    ]


@pytest.fixture(scope="module")
def folder(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reference answers in the place of samples, each question with another's too, and what was made of them."""
    folder = tmp_path_factory.mktemp("annotation")
    examples = read_examples(smoke / "prepared" / "world" / "sft_train.json")
    answers = [example.references[0] for example in examples]
    records = [OutputRecord.of(e, (answers[i], answers[i - 1], "No.")) for i, e in enumerate(examples)]
    write_outputs(folder / "outputs.jsonl", records)
    done(run_script("run_experiment", *one_command(smoke, folder)))
    return folder


def test_from_answers_to_reward_models_in_one_command(smoke: Path, folder: Path) -> None:
    run = folder / "run"
    records = read_feedback(run / "feedback.json")
    assert len(records) == 16 and sum(len(record.feedback.errors) for record in records if record.feedback) > 4
    assert all(record.feedback.annotators == ("ann", "ben") for record in records if record.feedback)
    labels = read_json(run / "agreement.json")["labels"]
    assert len(labels) == 3 and all(0.5 < one["percent"]["value"] <= 1 for one in labels.values())
    for kind in KINDS:
        assert read_json(run / "reward_models" / kind / "trust.json")["reward_model"] == kind
        assert (run / "reward_models" / kind / "model" / "model.safetensors").is_file()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    said = done(run_script("run_experiment", *one_command(smoke, folder)))
    assert said.count(" is done") == 8
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} <= {run / "experiment.json"}


@pytest.mark.slow
def test_the_next_items_are_those_that_its_models_choose_and_mark(folder: Path, tmp_path: Path) -> None:
    models = f"[{','.join(str(folder / 'run' / 'reward_models' / kind) for kind in KINDS)}]"
    segments = f"[{','.join(str(folder / 'run' / 'reward_models' / kind) for kind in KINDS[:2])}]"
    common = (f"outputs={folder}/outputs.jsonl", "annotators=[ann]", "count=8", "overlap=0")
    for select, more in (
        ("uncertain", ()),
        ("disagree", (f"select.models={models[:-1]},{models[1:]}",)),
        ("drift", (f"select.before={folder}/outputs.jsonl",)),
        ("diverse", ("preannotate=models", f"preannotate.models={segments}", "preannotate.threshold=0.01")),
    ):
        given = (*common, f"output_dir={tmp_path}/{select}", f"select={select}", f"select.models={models}", *more)
        done(run_script("make_annotation_tasks", *given))
        items = list(read_jsonl(tmp_path / select / "items.jsonl"))
        chosen = [(item["strategy"], item["probability"]) for item in items]
        assert sorted(chosen) == sorted([(select, 1.0)] * 6 + [("random", 2 / 16)] * 2)
    assert sum(bool(item["suggestions"]) for item in items) == 4  # half of them


def weighted(folder: Path, smoke: Path, output: Path) -> list[str]:
    feedback = json.loads((folder / "run" / "feedback.json").read_text())
    assert any("annotators" in error for row in feedback for error in row["feedback"]["errors"])
    return [
        "experiment=factworld/reward_model",
        "reward_model=relevance",
        "reward_model.annotator_weights=agreement",
        "reward_model.batches.batch_size=4",
        f"data={folder}/run/feedback.json",
        f"model={smoke}/prepared/models/longformer",
        f"output_dir={output}",
        "total_steps=6",
        "checkpoint_every=2",
        "validate_every=3",
        "seed=3",
    ]


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(run / "model" / "model.safetensors")
    return found


def test_labels_that_count_by_agreement_train_another_model(folder: Path, smoke: Path, tmp_path: Path) -> None:
    done(run_script("train_reward_model", *weighted(folder, smoke, tmp_path / "weighted")))
    plain = [key for key in weighted(folder, smoke, tmp_path / "plain") if "annotator_weights" not in key]
    done(run_script("train_reward_model", *plain))
    counted = weights(tmp_path / "weighted")
    assert any(not torch.allclose(counted[name], value) for name, value in weights(tmp_path / "plain").items())


@pytest.mark.slow
def test_labels_that_count_by_agreement_in_two_processes_and_after_a_kill(
    folder: Path, smoke: Path, tmp_path: Path
) -> None:
    done(run_script("train_reward_model", *weighted(folder, smoke, tmp_path / "calm")))
    calm = weights(tmp_path / "calm")
    done(run_in_two_processes("train_reward_model", *weighted(folder, smoke, tmp_path / "two")))
    for name, value in weights(tmp_path / "two").items():
        assert torch.allclose(calm[name], value, atol=1e-4), name
    killed = tmp_path / "killed"
    run_again_after_a_kill(
        "train_reward_model", *weighted(folder, smoke, killed), when=(killed / "checkpoints" / "step_4").exists
    )
    assert rows(tmp_path / "killed" / "metrics.jsonl") == rows(tmp_path / "calm" / "metrics.jsonl")
    assert all(torch.equal(calm[name], value) for name, value in weights(tmp_path / "killed").items())
