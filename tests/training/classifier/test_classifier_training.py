"""Training a classifier of texts: it learns, its control does not, and a step is one whatever it is cut into."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.models.loading import load_tokenizer
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyBertConfig, TinyGPT2Config, TinyT5Config
from finegrained_rlhf.rewards import ClassifierScorer
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.classifier import TrainClassifier
from finegrained_rlhf.training.classifier.trainer import ClassifierTrainer
from finegrained_rlhf.training.supervised import BatchConfig

WORDS = ("red", "blue", "green", "plum", "pear", "lime")


def rows(count: int, shift: int = 0) -> list[dict[str, Any]]:
    """Texts that are bad where they hold `snag`."""
    found = []
    for number in range(shift, shift + count):
        words = [WORDS[(number * 5 + k * k) % 6] for k in range(3 + number // 2 % 4)]
        bad = number % 2 == 1
        if bad:
            words[number % len(words)] = "snag"
        found.append({"id": f"t-{number}", "text": " ".join(words), "label": "bad" if bad else "good"})
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classifier")
    write_jsonl(path / "train.jsonl", rows(60))
    write_jsonl(path / "dev.jsonl", rows(20, 61))
    MakeTinyModels(
        data=str(path / "train.jsonl"),
        output_dir=str(path / "models"),
        bert=TinyBertConfig(d_model=16, d_ff=32, num_layers=1, num_heads=2, max_length=32, dropout_rate=0.1),
        gpt2=TinyGPT2Config(d_model=16, num_layers=1, num_heads=2, max_length=32),
        t5=TinyT5Config(d_model=16, d_ff=32, num_layers=1, num_heads=2),
    ).run()
    return path


def job(files: Path, output: Path, kind: str = "bert", **changes: Any) -> TrainClassifier:
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "data": str(files / "train.jsonl"),
        "validation_data": str(files / "dev.jsonl"),
        "model": str(files / "models" / kind),
        "classes": ["good", "bad"],
        "optimizer": OptimizerConfig(lr=1e-2, eps=1e-4, schedule="constant"),
        "batches": BatchConfig(20, 20, 20),
        "total_steps": 6,
        "validate_every": 2,
        "checkpoint_every": 2,
        "processes": ProcessConfig(threads=1),
    }
    return TrainClassifier(**settings | changes)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_it_learns_and_is_a_reward(files: Path, tmp_path: Path, kind: str) -> None:
    job(files, tmp_path / "run", kind, total_steps=60, validate_every=20, checkpoint_every=60).run()
    measured = read_json(tmp_path / "run/metrics.json")
    assert measured["labels"] == ["good", "bad"] and measured["dev"]["accuracy"] > 0.95
    scorer = ClassifierScorer(str(tmp_path / "run"), "bad")
    bad, good = scorer.score_texts(["red plum snag", "red plum lime"])
    assert bad > 0.8 and good < 0.2


def test_shuffled_labels_teach_nothing(files: Path, tmp_path: Path) -> None:
    job(files, tmp_path / "run", total_steps=60, validate_every=20, checkpoint_every=60, shuffle_labels=True).run()
    assert read_json(tmp_path / "run/metrics.json")["dev"]["accuracy"] < 0.8


def test_scores_are_learnt_as_probabilities(files: Path, tmp_path: Path) -> None:
    """Every text scored .25: the lowest loss is the entropy of (.75, .25), and that is what the classifier says."""
    write_jsonl(tmp_path / "scored.jsonl", [{"text": row["text"], "score": 0.25} for row in rows(40)])
    scored = str(tmp_path / "scored.jsonl")
    job(files, tmp_path / "run", data=scored, validation_data=scored, total_steps=40, dropout=0.0).run()
    loss = read_json(tmp_path / "run/metrics.json")["dev"]["loss"]
    assert loss == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), abs=0.01)
    assert ClassifierScorer(str(tmp_path / "run"), "bad").score_texts(["red lime"])[0] == pytest.approx(0.25, abs=0.05)


def built(training: TrainClassifier) -> ClassifierTrainer:
    return training.build(Processes())


def test_a_step_is_the_mean_over_its_texts_whatever_the_micro_batches(files: Path, tmp_path: Path) -> None:
    found = []
    for size in (1, 7, 20):
        trainer = built(job(files, tmp_path, dropout=0.0, batches=BatchConfig(20, size, 20)))
        metrics = trainer.train_step(1)
        trainer.train_step(2)
        found.append((metrics["loss"], {n: p.detach().clone() for n, p in trainer.model.named_parameters()}))
    for loss, weights in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-6)
        for name, value in weights.items():
            torch.testing.assert_close(value, found[0][1][name], atol=1e-5, rtol=0)


def test_the_loss_is_transformers_own(files: Path, tmp_path: Path) -> None:
    trainer = built(job(files, tmp_path, dropout=0.0))
    network, total = trainer.model.network, 0.0
    for row in rows(20, 61):
        ids = torch.tensor([trainer.model.tokenizer(row["text"])["input_ids"]])
        total += float(network(input_ids=ids, labels=torch.tensor([row["label"] == "bad"]).long()).loss.detach())
    assert trainer.validate(0)["loss"] == pytest.approx(total / 20, abs=1e-5)


def test_a_killed_run_goes_on_bit_identically(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job(files, tmp_path / "whole").run()
    original = ClassifierTrainer.train_step

    def interrupted(self: ClassifierTrainer, step: int) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return original(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(ClassifierTrainer, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job(files, tmp_path / "cut").run()
    job(files, tmp_path / "cut").run()
    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").open()] for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1]


def test_what_cannot_be_trained_is_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected an encoder or a decoder-only model"):
        built(job(files, tmp_path, "t5"))
    with pytest.raises(ConfigError, match="none of a, b"):
        built(job(files, tmp_path, classes=["a", "b"]))
    with pytest.raises(ConfigError, match="selected_by"):
        job(files, tmp_path, selected_by="f1")
    with pytest.raises(ConfigError, match="batch_size: expected at least 1"):
        BatchConfig(0)


def test_a_tokenizer_of_another_model_is_refused(files: Path, tmp_path: Path) -> None:
    shutil.copytree(files / "models/gpt2", tmp_path / "odd")
    tokenizer = load_tokenizer(tmp_path / "odd")
    tokenizer.add_tokens(["violet"])
    tokenizer.save_pretrained(tmp_path / "odd")
    write_jsonl(tmp_path / "odd.jsonl", [{"text": "red violet", "label": "good"}, {"text": "blue", "label": "bad"}])
    for part in ("data", "validation_data"):
        with pytest.raises(ModelError, match="they do not belong together"):
            built(job(files, tmp_path / "run", model=str(tmp_path / "odd"), **{part: str(tmp_path / "odd.jsonl")}))
