"""Encoders with long context as reward models: each family against transformers' own classifier, padded and not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reward_model_samples import CORPUS, cue_records, save_llama
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForTokenClassification

from finegrained_rlhf.models.tiny_networks import build_tokenizer, encoder_tokenizer
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models.config import LayerConfig, RewardModelConfig
from reward_models.data.examples import LabelSettings, build_examples
from reward_models.encoders.inputs import EncodedInput, pad_inputs
from reward_models.encoders.models import load_reward_model, new_reward_model
from reward_models.job import TrainRewardModel
from reward_models.kinds import RELEVANCE
from reward_models.parts import relevance_parts
from reward_models.record import RewardModelRecord
from reward_models.train import RewardModelTrainer

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "modernbert": {"max_position_embeddings": 300, "local_attention": 16, "global_attn_every_n_layers": 2},
    "deberta-v2": {
        "max_position_embeddings": 300,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
    },
    "deberta": {"max_position_embeddings": 300, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "roberta": {"max_position_embeddings": 304},
    "electra": {"max_position_embeddings": 300, "embedding_size": 16},
}


def save_encoder(family: str, directory: Path) -> Path:
    """A tiny random encoder of a family with its tokenizer."""
    tokenizer = encoder_tokenizer(build_tokenizer(CORPUS), 300)
    special = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep")
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **SMALL, **FAMILIES[family], **special)
        AutoModelForMaskedLM.from_config(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("family", FAMILIES)
def test_segments_are_judged_as_transformers_does_and_a_step_is_made(family: str, tmp_path: Path) -> None:
    model = new_reward_model(save_encoder(family, tmp_path / "encoder"), RewardModelRecord("relevance", max_length=250))
    assert not model.causal and model.max_length == 250
    torch.nn.init.normal_(model.model.classifier.weight)
    (tmp_path / "saved").mkdir()
    model.save(tmp_path / "saved")
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "saved").eval()
    generator = torch.Generator().manual_seed(0)
    inputs = [
        EncodedInput(tuple(torch.randint(5, 20, (length,), generator=generator).tolist()), where)
        for length, where in ((230, (4, 100, 229)), (30, (7,)))
    ]
    with torch.no_grad():
        found = load_reward_model(tmp_path / "saved").segment_logits(pad_inputs(inputs, model.pad_id))
        alone = [theirs(input_ids=torch.tensor([item.ids])).logits[0, list(item.separators)] for item in inputs]
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-5)
    assert found.std() > 0.01
    examples = build_examples(cue_records(4), LabelSettings(RELEVANCE), model.input_encoder(), SpacySegmenter())
    layers = LayerConfig(frozen=1, decay=0.5)
    config = RewardModelConfig("relevance", OptimizerConfig(lr=1e-3), BatchConfig(4), steps=2, layers=layers)
    job = TrainRewardModel(output_dir="", data="", model="", reward_model=config)
    trainer = RewardModelTrainer(job, model, examples, (), Processes())
    assert trainer.train_step(2)["gradient_norm"] > 0


def test_a_decoder_reads_a_segment_at_its_end_and_none_behind_it(tmp_path: Path) -> None:
    """Other words in a segment change its score and those behind it, never those before it."""
    model = new_reward_model(save_llama(tmp_path / "llama"), RewardModelRecord("relevance", max_length=160))
    torch.nn.init.normal_(model.model.score.weight)
    texts = (["It is cold,", "wide and deep.", "Yes!"], ["It is cold,", "warm and deep.", "Yes!"])
    inputs = model.input_encoder().encode([relevance_parts("What is it?", segments) for segments in texts])
    assert len(inputs[0].ids) == len(inputs[1].ids) and inputs[0].separators == inputs[1].separators
    with torch.no_grad():
        one, other = model.segment_logits(pad_inputs(inputs, model.pad_id)).split(3)
    moved = (one - other).abs().amax(dim=1)
    assert moved[0] == 0 and moved[1] > 1e-3 and moved[2] > 1e-6
