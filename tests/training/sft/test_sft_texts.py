"""Training on whole texts: the loss and the perplexity are transformers' own, one text at a time."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyGPT2Config, TinyLlamaConfig, TinyT5Config
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.order import items_of_step
from finegrained_rlhf.training.sft import TrainSFT
from finegrained_rlhf.training.sft.trainer import WholeTextTrainer

TEXTS = ["red plum and blue pear", "one lime", "green oval cube , red plum", "blue pear and one lime and red cube"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine texts, three held-out ones, and tiny models."""
    path = tmp_path_factory.mktemp("texts")
    write_jsonl(path / "train.jsonl", [{"id": f"t-{i}", "text": TEXTS[i % 4] + f" {TEXTS[i % 3]}"} for i in range(9)])
    write_jsonl(path / "dev.jsonl", [{"id": f"d-{i}", "text": text} for i, text in enumerate(TEXTS[1:])])
    MakeTinyModels(
        data=[str(path / "train.jsonl"), str(path / "dev.jsonl")],
        output_dir=str(path / "models"),
        t5=TinyT5Config(d_model=16, d_ff=32, num_layers=1, num_heads=2),
        gpt2=TinyGPT2Config(d_model=16, num_layers=1, num_heads=2, max_length=24),
        llama=TinyLlamaConfig(16, 32, num_layers=1, num_heads=2),
    ).run()
    return path


def job(files: Path, output: Path, kind: str = "gpt2", **changes: Any) -> TrainSFT:
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "data": str(files / "train.jsonl"),
        "validation_data": str(files / "dev.jsonl"),
        "whole_texts": True,
        "policy": PolicyConfig(str(files / "models" / kind)),
        "optimizer": OptimizerConfig(lr=1e-2, warmup_steps=1),
        "total_steps": 6,
        "max_answer_tokens": 24,
        "validate_every": 3,
        "checkpoint_every": 2,
        "dropout": 0.0,
        "processes": ProcessConfig(threads=1),
    }
    return TrainSFT(**settings | changes)


def built(sft: TrainSFT) -> WholeTextTrainer:
    trainer = sft.build(Processes())
    assert isinstance(trainer, WholeTextTrainer)
    return trainer


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_loss_and_perplexity_are_transformers_own(files: Path, tmp_path: Path, kind: str) -> None:
    sft = job(files, tmp_path, kind, batch_size=5, micro_batch_size=2)
    trainer = built(sft)
    model, end = copy.deepcopy(trainer.policy.model).eval(), trainer.policy.eos_ids[0]
    tokenizer = trainer.policy.tokenizer

    def own(text: str) -> tuple[float, int]:
        """Summed loss and number of learnt tokens of a text with its end, by the model's own shifted labels."""
        ids = torch.tensor([[*tokenizer(text)["input_ids"], end]])
        return float(model(input_ids=ids, labels=ids).loss.detach()) * (ids.shape[1] - 1), ids.shape[1] - 1

    dev = [own(text) for text in TEXTS[1:]]
    measured = trainer.validate(0)
    mean = sum(loss for loss, _ in dev) / sum(tokens for _, tokens in dev)
    assert measured["score"] == pytest.approx(-mean, abs=1e-5)
    assert measured["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)
    losses = [own(item.prompt.text) for item in items_of_step(trainer.data, 1, 5, sft.seed)]
    metrics = trainer.train_step(1)
    assert metrics["tokens"] == sum(tokens for _, tokens in losses)
    assert metrics["loss"] == pytest.approx(sum(loss for loss, _ in losses) / metrics["tokens"], abs=1e-5)


def test_it_learns_and_exports_the_most_likely(files: Path, tmp_path: Path) -> None:
    job(files, tmp_path, total_steps=40, validate_every=10, batch_size=9, checkpoint_every=40).run()
    rows = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    assert rows[-1]["perplexity"] < 0.3 * rows[0]["perplexity"]
    best = max(rows, key=lambda row: row["score"])
    exported = built(job(files, tmp_path / "again", policy=PolicyConfig(str(tmp_path))))
    assert exported.validate(0)["score"] == pytest.approx(best["score"], abs=1e-5)


@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), LoraConfig(rank=2)])
def test_a_killed_run_goes_on_bit_identically(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: LoraConfig | None
) -> None:
    policy = PolicyConfig(str(files / "models/gpt2"), lora=lora)
    job(files, tmp_path / "whole", policy=policy, dropout=0.1).run()
    original = WholeTextTrainer.train_step

    def interrupted(self: WholeTextTrainer, step: int) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return original(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(WholeTextTrainer, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job(files, tmp_path / "cut", policy=policy, dropout=0.1).run()
    job(files, tmp_path / "cut", policy=policy, dropout=0.1).run()
    weights = [(tmp_path / name / "policy/model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    scores = [
        [json.loads(line)["score"] for line in (tmp_path / name / "eval.jsonl").open()] for name in ("whole", "cut")
    ]
    assert scores[0] == scores[1]


def test_what_cannot_be_learnt_is_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="whole_texts: expected a decoder-only policy"):
        job(files, tmp_path, "t5").build(Processes())
    write_jsonl(tmp_path / "short.jsonl", [{"id": "a", "text": "red plum"}, {"id": "b", "text": "red"}])
    with pytest.raises(DataError, match=r"short\.jsonl.*record b.*at least two tokens"):
        job(files, tmp_path, data=str(tmp_path / "short.jsonl")).build(Processes())


def test_long_texts_lose_their_end_and_are_counted(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        trainer = built(job(files, tmp_path, max_answer_tokens=6))
    assert "8 of 9 texts are longer than 6 tokens" in caplog.text
    assert sorted({1 + len(item.answer_ids) for item in trainer.data}) == [5, 6]
    assert all(item.answer_ids[-1] == trainer.policy.eos_ids[0] for item in trainer.data)
