"""Training a class-conditional language model: the loss by hand, what a step does not depend on, and what it learns."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_toy import policy
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig
from finegrained_rlhf.models.loading import load_tokenizer
from finegrained_rlhf.models.logprobs import TokenLogprobs
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyGPT2Config, TinyT5Config
from finegrained_rlhf.rollout.mixers.gedi import ClassCodes
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.gedi import TrainGeDi
from finegrained_rlhf.training.gedi.trainer import ClassExample, GeDiTrainer


def trainer_of_halves_and_quarters(monkeypatch: pytest.MonkeyPatch, optimizer: OptimizerConfig) -> GeDiTrainer:
    """Two texts, two classes; the model gives every token ½ behind code a and ¼ behind code b."""
    ours = policy("gpt2")

    def fixed(self: Any, memory: Any, index: Tensor, ids: Tensor, mask: Tensor, **_: Any) -> TokenLogprobs:
        values = torch.tensor([math.log(0.5), math.log(0.25)])[index][:, None] * mask
        return TokenLogprobs(values + 0 * next(ours.parameters()).sum(), torch.zeros_like(values))

    monkeypatch.setattr(type(ours), "logprobs", fixed)
    examples = [ClassExample((5, 6, 1), 0), ClassExample((7, 1), 1)]
    sizes = {"batch_size": 2, "micro_batch_size": 1, "total_steps": 2}
    job = TrainGeDi(output_dir="", data="", policy=PolicyConfig(""), optimizer=optimizer, generative=0.8, **sizes)
    return GeDiTrainer(job, ours, {"a": (5,), "b": (6,)}, examples, examples, Processes())


def test_the_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of_halves_and_quarters(monkeypatch, OptimizerConfig(lr=1e-3))
    metrics = trainer.validate(0)
    generative = (math.log(2) + math.log(4)) / 2  # each text behind its own code
    # With scale 1 the odds of a are exp(ln 4 − ln 2) = 2 for both texts: p(a) = 2/3.
    discriminative = (math.log(3 / 2) + math.log(3)) / 2
    assert metrics["loss/generative"] == pytest.approx(generative, abs=1e-6)
    assert metrics["loss/discriminative"] == pytest.approx(discriminative, abs=1e-6)
    assert metrics["loss"] == pytest.approx(0.8 * generative + 0.2 * discriminative, abs=1e-6)
    assert metrics["accuracy"] == 0.5 and metrics["score"] == -metrics["loss"]


def test_the_scale_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """`class_scale` is the scale after the step: three of AdamW, in plain numbers.

    With scale s the odds of a are 2^s for both texts, and the mean cross-entropy of a and b,
    −(ln p(a) + ln p(b)) / 2, has the slope (p(a) − ½) ln 2 in s; 0.2 is its share of the loss.
    """
    lr, eps = 0.3, 0.1  # so large an ε that the size of a gradient shows in Adam's step
    optimizer = OptimizerConfig(lr=lr, betas=(0.9, 0.99), eps=eps, schedule="constant")
    trainer = trainer_of_halves_and_quarters(monkeypatch, optimizer)
    scale, first, second = 1.0, 0.0, 0.0
    for step in (1, 2, 3):
        slope = 0.2 * math.log(2) * (2**scale / (1 + 2**scale) - 0.5)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        scale -= lr * (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.99**step)) + eps)
        metrics = trainer.train_step(step)
        assert metrics["class_scale"] == pytest.approx(scale, abs=1e-6)
        assert metrics["gradient_norm"] == pytest.approx(slope, abs=1e-7)
    assert scale == pytest.approx(0.87, abs=0.05)  # moved by much more than is allowed above


WORDS = ("red", "blue", "green", "plum", "pear", "lime")


def rows(count: int, shift: int = 0) -> list[dict[str, str]]:
    """Class a writes colours before fruit, class b fruit before colours."""
    found = []
    for n in range(shift, shift + count):
        colour, fruit = WORDS[n % 3], WORDS[3 + (n // 3) % 3]
        text = f"{colour} {fruit} {colour}" if n % 2 else f"{fruit} {colour} {fruit}"
        found.append({"id": f"t-{n}", "text": text, "label": "a" if n % 2 else "b"})
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gedi")
    write_jsonl(path / "train.jsonl", rows(36))
    write_jsonl(path / "dev.jsonl", rows(8, 5))
    MakeTinyModels(
        data=str(path / "train.jsonl"),
        output_dir=str(path / "models"),
        gpt2=TinyGPT2Config(d_model=16, num_layers=1, num_heads=2, max_length=16),
        t5=TinyT5Config(d_model=16, d_ff=32, num_layers=1, num_heads=2),
    ).run()
    return path


def job(files: Path, output: Path, **changes: Any) -> TrainGeDi:
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "data": str(files / "train.jsonl"),
        "validation_data": str(files / "dev.jsonl"),
        "policy": PolicyConfig(str(files / "models/gpt2")),
        "codes": {"a": "red red", "b": "plum"},
        "optimizer": OptimizerConfig(lr=1e-2, schedule="constant"),
        "batch_size": 12,
        "total_steps": 6,
        "validate_every": 2,
        "checkpoint_every": 2,
        "max_tokens": 8,
        "processes": ProcessConfig(threads=1),
    }
    return TrainGeDi(**settings | changes)


def test_it_learns_to_write_and_to_tell_apart(files: Path, tmp_path: Path) -> None:
    job(files, tmp_path, total_steps=60, validate_every=20, checkpoint_every=60, generative=0.5).run()
    found = [json.loads(line) for line in (tmp_path / "eval.jsonl").open()]
    assert found[-1]["accuracy"] == 1.0 and found[0]["accuracy"] < 0.9
    assert found[-1]["loss/generative"] < 0.6 * found[0]["loss/generative"]
    codes = ClassCodes.read(tmp_path / "policy")
    last = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()][-1]
    assert last["class_scale"] == codes.scale
    assert list(codes.codes) == ["a", "b"] and len(codes.codes["a"]) == 2 and codes.scale > 1.0


def test_micro_batches_do_not_change_a_step(files: Path, tmp_path: Path) -> None:
    found = []
    for size in (1, 5, 12):
        trainer = job(files, tmp_path, micro_batch_size=size, dropout=0.0).build(Processes())
        losses = [trainer.train_step(step)["loss"] for step in (1, 2)]
        found.append((losses, [*trainer.policy.model.parameters(), trainer.scale]))
    for losses, weights in found[1:]:
        assert losses == pytest.approx(found[0][0], abs=1e-5)
        for value, first in zip(weights, found[0][1], strict=True):
            torch.testing.assert_close(value, first, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), LoraConfig(rank=2)])
def test_a_killed_run_goes_on_bit_identically(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: LoraConfig | None
) -> None:
    start = PolicyConfig(str(files / "models/gpt2"), lora=lora)
    job(files, tmp_path / "whole", policy=start).run()
    original = GeDiTrainer.train_step

    def interrupted(self: GeDiTrainer, step: int) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return original(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(GeDiTrainer, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job(files, tmp_path / "cut", policy=start).run()
    job(files, tmp_path / "cut", policy=start).run()
    for name in ("model.safetensors", "class_codes.json"):
        whole, cut = ((tmp_path / run / "policy" / name).read_bytes() for run in ("whole", "cut"))
        assert whole == cut, name
    assert ClassCodes.read(tmp_path / "cut/policy").scale != 1.0


def test_what_cannot_be_trained_is_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="decoder-only"):
        job(files, tmp_path, policy=PolicyConfig(str(files / "models/t5"))).build(Processes())
    with pytest.raises(ConfigError, match=r"does not know the code of 'a'"):
        job(files, tmp_path, codes={"a": "zebra", "b": "plum"}).build(Processes())
    with pytest.raises(ConfigError, match="the same code"):
        job(files, tmp_path, codes={"a": "plum", "b": "plum"}).build(Processes())
    with pytest.raises(ConfigError, match="generative"):
        job(files, tmp_path, generative=1.5)
    write_jsonl(tmp_path / "scored.jsonl", [{"text": "red", "label": "a"}, {"text": "blue", "score": 0.5}])
    with pytest.raises(DataError, match="record 1.*expected a label"):
        job(files, tmp_path, data=str(tmp_path / "scored.jsonl")).build(Processes())


def test_a_tokenizer_of_another_model_is_refused(files: Path, tmp_path: Path) -> None:
    shutil.copytree(files / "models/gpt2", tmp_path / "odd")
    tokenizer = load_tokenizer(tmp_path / "odd")
    tokenizer.add_tokens(["violet"])
    tokenizer.save_pretrained(tmp_path / "odd")
    write_jsonl(tmp_path / "odd.jsonl", [{"text": "red violet", "label": "a"}, {"text": "blue", "label": "b"}])
    odd = {"policy": PolicyConfig(str(tmp_path / "odd"))}
    for changes in ({"data": str(tmp_path / "odd.jsonl")}, {"codes": {"a": "violet", "b": "plum"}}):
        with pytest.raises(ModelError, match="they do not belong together"):
            job(files, tmp_path / "run", **odd | changes).build(Processes())
