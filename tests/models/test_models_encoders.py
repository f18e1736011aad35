"""What models on an encoder share: where they are, how they are saved, and which directories open as encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dialki_toy import save_bert as save_dialogue_bert
from dialki_toy import tiny_dialki
from reward_model_samples import save_bert
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, T5Config, T5ForConditionalGeneration

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.encoders.model import EncoderModel, encoder_config, open_encoder
from reward_models.encoders.models import load_reward_model, new_reward_model
from reward_models.record import RewardModelRecord


def on_an_encoder(which: str, folder: Path) -> EncoderModel:
    if which == "dialki":
        return tiny_dialki(save_dialogue_bert(folder))
    return new_reward_model(save_bert(folder), RewardModelRecord("factuality"))


@pytest.mark.parametrize("which", ["dialki", "reward model"])
def test_a_saved_model_opens_with_transformers_alone(which: str, tmp_path: Path) -> None:
    model = on_an_encoder(which, tmp_path / "encoder")
    assert isinstance(model, EncoderModel)
    model.save(tmp_path / "saved")
    opened, tokenizer = AutoModel.from_pretrained(tmp_path / "saved"), AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert model.pad_id == tokenizer.pad_token_id == 0
    assert len(tokenizer) == len(model.tokenizer)
    ours: Any = model.network.get_input_embeddings().weight
    assert torch.equal(opened.get_input_embeddings().weight, ours)
    assert model.to("meta").device == torch.device("meta")


def test_there_is_no_encoder_model_without_a_network() -> None:
    with pytest.raises(TypeError, match="abstract"):
        EncoderModel(None)  # type: ignore[abstract]


def test_one_check_of_what_an_encoder_is(tmp_path: Path) -> None:
    assert encoder_config(save_bert(tmp_path)).model_type == "bert"
    T5ForConditionalGeneration(T5Config(vocab_size=8, d_model=8, d_ff=8, num_layers=1, num_heads=1)).save_pretrained(
        tmp_path / "t5"
    )
    for opened in (
        lambda: open_encoder(tmp_path / "t5"),
        lambda: new_reward_model(tmp_path / "t5", RewardModelRecord("relevance")),
    ):
        with pytest.raises(ModelError, match="t5: a t5 model, expected an encoder such as BERT or Longformer"):
            opened()
    (tmp_path / "config.json").write_text("{half")
    for opened in (
        lambda: open_encoder(tmp_path),
        lambda: new_reward_model(tmp_path, RewardModelRecord("relevance")),
    ):
        with pytest.raises(ModelError, match=r"config\.json: not a model configuration"):
            opened()


def test_a_reward_model_with_a_weight_that_is_no_number_is_refused(tmp_path: Path) -> None:
    new_reward_model(save_bert(tmp_path / "encoder"), RewardModelRecord("factuality")).save(tmp_path / "saved")
    weights = load_file(tmp_path / "saved" / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, tmp_path / "saved" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"not finite, for example in classifier\.bias"):
        load_reward_model(tmp_path / "saved")
