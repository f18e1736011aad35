"""Supervised trainers in shards: several processes, one of them without work, end as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from reward_model_samples import cue_records, save_bert, save_llama, save_longformer
from safetensors.torch import load_file
from script_runs import Done, rows, run_in_processes, run_script

from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.feedback.reading import write_examples, write_feedback
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyBertConfig, TinyGPT2Config

SLOW = pytest.mark.slow
WORDS = ("red", "blue", "green", "plum", "pear", "lime")
RATE = ("dropout=0", "optimizer.lr=1e-3")
CLASSIFIER = ("train_classifier", "batches.batch_size=2", "batches.micro_batch_size=1", *RATE)
POLICY = ("batch_size=2", "micro_batch_size=1", "policy.path={}/gpt2", *RATE)
PACKED = ("batch_size=4", "micro_batch_size=2", "packing=true", "optimizer.eps=1e-4", *RATE)
REWARD = (
    "train_reward_model",
    "reward_model.batches.batch_size=2",
    "reward_model.batches.micro_batch_size=1",
    "reward_model.optimizer.lr=1e-3",
)
CASES = {
    "classifier": (*CLASSIFIER, "model={}/bert"),
    "decoder_classifier": (*CLASSIFIER, "model={}/gpt2"),
    "gedi": ("train_gedi", *POLICY),
    "gedi_adapters": ("train_gedi", *POLICY, "policy=lora"),
    "packed_texts": ("train_sft", *PACKED, "whole_texts=true", "policy.path={}/gpt2", "max_answer_tokens=9"),
    "packed_answers": (
        "train_sft",
        *PACKED,
        "policy.path={}/t5",
        "data={}/answers.json",
        "validation_data={}/answers.json",
    ),
    "whole_texts": ("train_sft", *POLICY, "whole_texts=true", "max_answer_tokens=9"),
    "segments": (*REWARD, "reward_model=relevance", "model={}/llama"),
    "frozen_segments": (*REWARD, "reward_model=relevance", "model={}/llama", "reward_model.layers.frozen=1"),
    "pairs": (*REWARD, "reward_model=preference", "model={}/llama"),
    "encoder_segments": (*REWARD, "reward_model=relevance", "model={}/encoder"),
}
ALL = [pytest.param(case, marks=() if case == "classifier" else SLOW) for case in CASES]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded")
    texts = [" ".join(WORDS[(n * 5 + k * k) % 6] for k in range(3 + n % 4)) for n in range(12)]
    write_jsonl(path / "texts.jsonl", [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts)])
    write_feedback(path / "feedback.json", cue_records(12))
    asked = [QAExample(f"x-{n}", "What?", f"What? {text}", (texts[n - 1],), ()) for n, text in enumerate(texts)]
    write_examples(path / "answers.json", asked)
    save_llama(path / "llama")
    config = save_bert(path / "encoder") / "config.json"
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config.write_text(json.dumps(json.loads(config.read_text()) | without))
    save_longformer(path / "longformer")
    MakeTinyModels(
        data=str(path / "texts.jsonl"),
        output_dir=str(path),
        bert=TinyBertConfig(d_model=16, d_ff=32, num_layers=2, num_heads=2, max_length=32),
        gpt2=TinyGPT2Config(d_model=16, num_layers=2, num_heads=2, max_length=32),
    ).run()
    return path


def words(files: Path, case: str, output: Path, *more: str) -> list[str]:
    name, *own = CASES[case]
    data = files / ("feedback.json" if name == "train_reward_model" else "texts.jsonl")
    held_out = [] if name == "train_reward_model" else [f"validation_data={data}"]
    often = ["validate_every=1", "checkpoint_every=1", "keep_checkpoints=9", "processes.precision=fp32"]
    return [
        name,
        f"output_dir={output}",
        f"data={data}",
        *held_out,
        *often,
        *(word.format(files) for word in own),
        "total_steps=2",
        *more,
    ]


def done(result: Done) -> None:
    assert result.returncode == 0, result.stderr


def assert_alike(one: Path, other: Path, step: int = 2) -> None:
    exported = next(path for path in (one / "model", one / "policy") if path.exists())
    for name in (f"checkpoints/step_{step}/{exported.name}", exported.name):
        ours, theirs = (load_file(run / name / "model.safetensors") for run in (one, other))
        assert ours.keys() == theirs.keys()
        for key, tensor in ours.items():
            torch.testing.assert_close(theirs[key], tensor, rtol=1e-5, atol=1e-5, msg=f"{name}: {key}")
    for file in ("metrics.jsonl", "eval.jsonl"):
        for ours, theirs in zip(rows(one / file), rows(other / file), strict=True):
            assert {**theirs, "processes": 1} == pytest.approx({**ours, "processes": 1}, abs=1e-4)


@pytest.mark.parametrize("case", ALL)
def test_three_processes_one_without_work_end_as_one(files: Path, tmp_path: Path, case: str) -> None:
    done(run_script(*words(files, case, tmp_path / "one")))
    done(run_in_processes(3, *words(files, case, tmp_path / "full", "processes.sharding=full")))
    assert_alike(tmp_path / "one", tmp_path / "full")
    parts = [load_file(file).keys() for file in (tmp_path / "full/checkpoints/step_2").rglob("optimizer*.safetensors")]
    in_parts = {key for part in parts for key in part if sum(key in other for other in parts) > 1}
    assert bool(in_parts) != ("adapters" in case)  # moments of rows; adapters have one owner each
    start = load_file(next((tmp_path / "one/checkpoints/step_0").glob("*/model.safetensors")))
    end = load_file(next((tmp_path / "one/checkpoints/step_2").glob("*/model.safetensors")))
    assert max(float((end[name] - start[name]).abs().max()) for name in start) >= 1e-4


@SLOW
@pytest.mark.parametrize("case", CASES)
def test_two_and_three_processes_and_another_number_resumes(files: Path, tmp_path: Path, case: str) -> None:
    """Runs of two steps, in two processes that share out gradients, go on in three with `full`, and in one."""
    done(run_script(*words(files, case, tmp_path / "one")))
    for processes, sharding in ((3, "gradients"), (2, "full"), (2, "gradients")):
        output = tmp_path / f"{sharding}_{processes}"
        done(run_in_processes(processes, *words(files, case, output, f"processes.sharding={sharding}")))
        assert_alike(tmp_path / "one", output)
    done(run_script(*words(files, case, tmp_path / "one", "total_steps=4")))
    done(run_in_processes(3, *words(files, case, output, "processes.sharding=full", "total_steps=4")))
    done(run_script(*words(files, case, tmp_path / "full_2", "total_steps=4")))
    assert_alike(tmp_path / "one", output, step=4)
    assert_alike(tmp_path / "one", tmp_path / "full_2", step=4)


def test_a_longformer_is_refused_in_one_line(files: Path, tmp_path: Path) -> None:
    case = [word for word in words(files, "encoder_segments", tmp_path / "run") if not word.startswith("model=")]
    result = run_in_processes(2, *case, f"model={files}/longformer", "processes.sharding=full")
    lines = {line for line in result.stderr.splitlines() if line.startswith("error: ")}
    assert result.returncode == 2 and len(lines) == 1 and "processes.sharding=full: " in lines.pop()
