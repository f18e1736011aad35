"""Training with less padding: three steps and a run's files are those of padded micro-batches; tokens are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig
from finegrained_rlhf.models.tiny import (
    MakeTinyModels,
    TinyBertConfig,
    TinyGPT2Config,
    TinyLlamaConfig,
    TinyLongformerConfig,
    TinyT5Config,
)
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.classifier import TrainClassifier
from finegrained_rlhf.training.dpr import TrainDPR
from finegrained_rlhf.training.gedi import TrainGeDi
from finegrained_rlhf.training.sft.job import TrainSFT
from finegrained_rlhf.training.supervised import BatchConfig

WORDS = ("red", "blue", "green", "plum", "pear", "lime", "oval", "cube")
LENGTHS = (3, 40, 9, 5, 21, 4, 12, 7)
"""Words of a text, or of the passage of a prompt."""


def words(number: int) -> str:
    return " ".join(WORDS[(number * 5 + k * k) % 8] for k in range(LENGTHS[number % 8]))


def example(number: int) -> QAExample:
    answer = " ".join(WORDS[(number + k) % 8] for k in range(2 + 3 * number % 11))
    return QAExample(f"x-{number}", "What?", f"What? {words(number)}", (answer,), (Passage("", "", (words(number),)),))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts with answers, labelled texts, queries with passages, and tiny models without dropout."""
    path = tmp_path_factory.mktemp("packing")
    write_examples(path / "answers.json", [example(number) for number in range(16)])
    write_jsonl(path / "texts.jsonl", [{"text": words(n), "label": "ab"[n // 3 % 2]} for n in range(16)])
    passages = [{"id": f"p{n}", "title": "", "text": words(n)} for n in range(16)]
    asked = [
        {"id": f"q{n}", "turns": [words(n + 3)], "positives": [passages[n]], "negatives": [passages[(n + 5) % 16]]}
        for n in range(16)
    ]
    write_jsonl(path / "queries.jsonl", asked)
    small: dict[str, Any] = {"d_model": 16, "num_layers": 1, "num_heads": 2}
    MakeTinyModels(
        data=str(path / "answers.json"),
        output_dir=str(path / "models"),
        t5=TinyT5Config(d_ff=32, dropout_rate=0.0, **small),
        gpt2=TinyGPT2Config(max_length=128, **small),
        llama=TinyLlamaConfig(d_ff=32, **small),
        bert=TinyBertConfig(d_ff=32, max_length=128, dropout_rate=0.0, **small),
        longformer=TinyLongformerConfig(attention_window=8, d_ff=32, max_length=128, **small),
    ).run()
    return path


def job(files: Path, output: Path, name: str, **changes: Any) -> Any:
    kind, _, model = name.partition("/")
    path = str(files / "models" / (model or "bert"))
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-4, schedule="constant")
    settings: dict[str, Any] = {"output_dir": str(output), "optimizer": optimizer, "total_steps": 4, "dropout": 0.0}
    settings |= {"checkpoint_every": 2, "processes": ProcessConfig(threads=1)}
    policy: dict[str, Any] = {"policy": PolicyConfig(path), "batch_size": 8, "micro_batch_size": 8}
    if kind == "sft":
        return TrainSFT(**settings | policy | {"data": str(files / "answers.json")} | changes)
    if kind == "texts":
        whole = {"data": str(files / "texts.jsonl"), "whole_texts": True}
        return TrainSFT(**settings | policy | whole | changes)
    if kind == "gedi":
        texts = {"data": str(files / "texts.jsonl"), "codes": {"a": "red", "b": "blue"}}
        return TrainGeDi(**settings | policy | texts | changes)
    settings["batches"] = BatchConfig(8, 8, 8)
    if kind == "classifier":
        return TrainClassifier(**settings | {"data": str(files / "texts.jsonl"), "model": path} | changes)
    towers = {"query_model": path, "passage_model": path, "freeze_passages": False}
    # what moves all scores of a query alike has no gradient but rounding noise, which Adam divides by its own size
    settings["optimizer"] = replace(optimizer, lr=1e-4)
    return TrainDPR(**settings | towers | {"data": str(files / "queries.jsonl")} | changes)


def embedded(model: nn.Module) -> list[int]:
    """The tokens that a model embeds from now on, padding included, pass by pass."""
    seen: list[int] = []
    parts = [part.get_input_embeddings() for part in model.modules() if isinstance(part, PreTrainedModel)]
    for part in {id(part): part for part in parts}.values():
        part.register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    return seen


def trained(training: Any) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """Losses and weights of three steps, and the tokens that were embedded."""
    trainer = training.build(Processes())
    seen = embedded(trainer.model)
    losses = [trainer.train_step(step)["loss"] for step in (1, 2, 3)]
    return losses, {name: value.detach().clone() for name, value in trainer.model.named_parameters()}, sum(seen)


CASES = {
    "sft/t5": (1184, 704),
    "sft/llama": (1160, 588),
    "texts/gpt2": (832, 324),
    "gedi/gpt2": (1712, 980),
    "classifier/bert": (856, 490),
    "classifier/longformer": (960, 576),
    "dpr": (2896, 2558),
}
"""Tokens of three steps, padded and with `packing`; a Longformer of transformers pads to its window by itself."""


@pytest.mark.parametrize("case", CASES)
def test_three_steps_are_those_of_padded_micro_batches(files: Path, tmp_path: Path, case: str) -> None:
    start = dict(job(files, tmp_path, case).build(Processes()).model.named_parameters())
    (losses, padded, before), (packed_losses, packed, after) = (
        trained(job(files, tmp_path, case, packing=on)) for on in (False, True)
    )
    assert packed_losses == pytest.approx(losses, abs=1e-5)
    for name, value in padded.items():
        torch.testing.assert_close(packed[name], value, atol=1e-5, rtol=0, msg=name)
    assert max(float((padded[name] - value).abs().max()) for name, value in start.items()) > 1e-4
    assert (before, after) == CASES[case]


@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), LoraConfig(rank=2, dropout=0.1)])
def test_a_run_that_goes_on_is_one_that_was_never_cut(files: Path, tmp_path: Path, lora: LoraConfig | None) -> None:
    """Under dropout, where the model's own passes run."""
    policy = PolicyConfig(str(files / "models/t5"), lora=lora)
    changes: dict[str, Any] = {"packing": True, "dropout": 0.2, "policy": policy, "keep_checkpoints": 9}
    job(files, tmp_path / "whole", "sft/t5", **changes).run()
    job(files, tmp_path / "cut", "sft/t5", **changes, total_steps=2).run()
    job(files, tmp_path / "cut", "sft/t5", **changes).run()
    for name in ("policy/model.safetensors", "optimizer.safetensors"):
        whole, cut, early = (
            tmp_path / run / "checkpoints" / step / name
            for run, step in (("whole", "step_4"), ("cut", "step_4"), ("cut", "step_2"))
        )
        assert whole.read_bytes() == cut.read_bytes() != early.read_bytes()


def test_an_old_run_may_go_on_packed(files: Path, tmp_path: Path) -> None:
    """It is no other training: `packing` changes a step by rounding alone."""
    assert job(files, tmp_path, "sft/llama", total_steps=2).run().step == 2
    assert job(files, tmp_path, "sft/llama", packing=True).run().step == 4
