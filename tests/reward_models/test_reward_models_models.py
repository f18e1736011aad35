"""Reward models from and to directories: parity with transformers, labels, records, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reward_model_samples import enlarged, save_bert, save_longformer
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    CTRLConfig,
    CTRLLMHeadModel,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
)

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer
from reward_models.encoders.inputs import EncodedInput, InputBatch, pad_inputs
from reward_models.encoders.models import load_reward_model, new_reward_model
from reward_models.record import RewardModelRecord, error_label_ids


@pytest.fixture(scope="module")
def longformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_longformer(tmp_path_factory.mktemp("longformer") / "model")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert") / "model")


def batch_of(lengths: tuple[int, ...] = (40, 7, 21)) -> InputBatch:
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for length in lengths:
        ids = torch.randint(5, 30, (length,), generator=generator).tolist()
        where = tuple(i for i in (3, 5, 20, 38) if i < length - 1)
        for i in where:
            ids[i] = 1
        inputs.append(EncodedInput((3, *ids[1:-1], 1), where))
    return pad_inputs(inputs, 0)


@pytest.mark.parametrize("attention", ["none", "first", "separators"])
def test_longformer_outputs_equal_transformers(longformer: Path, tmp_path: Path, attention: str) -> None:
    batch = batch_of()
    everywhere = torch.zeros_like(batch.mask)
    if attention != "none":
        everywhere[:, 0] = 1
    if attention == "separators":
        everywhere[batch.rows, batch.positions] = 1
    options = {"attention_mask": batch.mask, "global_attention_mask": everywhere}
    for kind, theirs in (
        ("relevance", LongformerForTokenClassification),
        ("completeness", LongformerForSequenceClassification),
    ):
        ours = enlarged(new_reward_model(longformer, RewardModelRecord(kind, global_attention=attention)))
        ours.save(tmp_path / kind)
        logits = theirs.from_pretrained(tmp_path / kind)(batch.ids, **options).logits
        with torch.no_grad():
            if kind == "relevance":
                expected, found = logits[batch.rows, batch.positions], ours.segment_logits(batch)
            else:
                expected, found = logits.squeeze(-1), ours.answer_scores(batch)
        assert found.shape == expected.shape and found.std() > 0.01
        assert torch.allclose(found, expected, atol=1e-5)


def test_other_encoders_work(bert: Path, tmp_path: Path) -> None:
    batch = batch_of()
    for kind, auto in (
        ("factuality", AutoModelForTokenClassification),
        ("preference", AutoModelForSequenceClassification),
    ):
        ours = new_reward_model(bert, RewardModelRecord(kind))
        ours.save(tmp_path / kind)
        logits = auto.from_pretrained(tmp_path / kind)(batch.ids, attention_mask=batch.mask).logits
        with torch.no_grad():
            found = ours.segment_logits(batch) if kind == "factuality" else ours.answer_scores(batch)
        expected = logits[batch.rows, batch.positions] if kind == "factuality" else logits.squeeze(-1)
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["relevance", "completeness"])
def test_padding_and_order_make_no_difference(longformer: Path, kind: str) -> None:
    model = enlarged(new_reward_model(longformer, RewardModelRecord(kind, global_attention="first")))
    run = model.segment_logits if kind == "relevance" else model.answer_scores
    rows = [batch_of((length,)) for length in (40, 7, 21)]
    inputs = [EncodedInput(tuple(b.ids[0].tolist()), tuple(b.positions.tolist())) for b in rows]
    with torch.no_grad():
        alone = [run(pad_inputs([item], 0)) for item in inputs]
        together = run(pad_inputs(inputs, 0))
        backwards = run(pad_inputs(inputs[::-1], 0))
    assert torch.allclose(torch.cat(alone), together, atol=1e-5)
    assert torch.allclose(torch.cat(alone[::-1]), backwards, atol=1e-5)


@pytest.mark.parametrize("attention", ["none", "first", "separators"])
def test_bf16_autocast_stays_close(longformer: Path, attention: str) -> None:
    batch = batch_of()
    for kind in ("relevance", "completeness"):
        model = new_reward_model(longformer, RewardModelRecord(kind, global_attention=attention)).train()
        run = model.segment_logits if kind == "relevance" else model.answer_scores
        exact = run(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = run(batch)
        assert rounded.dtype == torch.float32
        assert torch.allclose(rounded, exact, atol=0.02) and not torch.equal(rounded, exact)
        rounded.sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_record_and_weights_come_back(longformer: Path, tmp_path: Path) -> None:
    record = RewardModelRecord("completeness", "first", 99, "rules", mean=0.25, std=1.5)
    model = new_reward_model(longformer, record)
    model.save(tmp_path / "run" / "model")
    again = load_reward_model(tmp_path / "run")
    assert again.record == record and not again.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert json.loads((tmp_path / "run" / "model" / "reward_model.json").read_text())["std"] == 1.5
    assert again.max_length == 99


def test_limit_is_the_smallest_of_all(longformer: Path, bert: Path) -> None:
    assert new_reward_model(longformer, RewardModelRecord("relevance")).max_length == 160
    assert new_reward_model(bert, RewardModelRecord("relevance", max_length=50)).max_length == 50
    model = new_reward_model(longformer, RewardModelRecord("relevance"))
    model.tokenizer.model_max_length = 10**30
    assert model.max_length == model.model.config.max_position_embeddings - 1


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({0: "no_error", 1: "has_error"}, {1}),
        ({0: "has_error", 1: "no_error"}, {0}),
        ({"0": "F-ERR", "1": "O"}, {0}),
        ({0: "O", 1: "NF-ERR", 2: "F-ERR"}, {1, 2}),
    ],
)
def test_labels_are_read(labels: dict, expected: set[int]) -> None:
    assert error_label_ids(labels) == expected


@pytest.mark.parametrize(
    "labels", [{0: "LABEL_0", 1: "LABEL_1"}, {0: "no_error"}, {0: "has_error", 1: "F-ERR"}, {0: "O", 1: "PER"}]
)
def test_labels_that_do_not_fit_are_refused(labels: dict, longformer: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="do not fit"):
        error_label_ids(labels)
    model = new_reward_model(longformer, RewardModelRecord("relevance"))
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    if len(labels) == 2:
        config["id2label"] = labels
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match="do not fit"):
            load_reward_model(tmp_path)


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(["a b"])
    ctrl = CTRLLMHeadModel(CTRLConfig(vocab_size=len(tokenizer), n_positions=8, n_embd=8, dff=8, n_layer=1, n_head=2))
    for name, model in (("t5", build_t5(tokenizer)), ("ctrl", ctrl)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        with pytest.raises(ModelError, match="expected an encoder such as .*, or a decoder-only model .*llama"):
            new_reward_model(tmp_path / name, RewardModelRecord("relevance"))
    with pytest.raises(ModelError, match="no model here"):
        new_reward_model(tmp_path / "absent", RewardModelRecord("relevance"))


def test_damaged_and_incomplete_directories_are_refused(longformer: Path, tmp_path: Path) -> None:
    model = new_reward_model(longformer, RewardModelRecord("completeness"))
    model.save(tmp_path)
    with pytest.raises(ModelError, match="not those of a LongformerForSequenceClassification: .* are missing"):
        load_reward_model(longformer, RewardModelRecord("completeness"))  # an encoder without a head
    (tmp_path / "reward_model.json").unlink()
    with pytest.raises(ModelError, match=r"no reward_model\.json"):
        load_reward_model(tmp_path)
    with pytest.raises(ModelError, match="are missing|do not fit"):
        load_reward_model(tmp_path, RewardModelRecord("relevance"))
    (tmp_path / "reward_model.json").write_text('{"kind": "relevance"}')
    with pytest.raises(ModelError, match="not a reward model record"):
        load_reward_model(tmp_path)
    (tmp_path / "reward_model.json").unlink()
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelError):
        load_reward_model(tmp_path, RewardModelRecord("completeness"))


def test_records_are_checked() -> None:
    record = RewardModelRecord("relevance")
    assert record.granularity == "sub_sentence" and replace(record, kind="factuality").granularity == "sentence"
    for change in ({"kind": "style"}, {"global_attention": "all"}, {"std": 0.0}):
        with pytest.raises(ConfigError):
            replace(record, **change)
