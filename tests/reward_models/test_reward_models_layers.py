"""What is trained of a pretrained model, at what rates: names by hand, and what a step moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from reward_model_samples import cue_records, save_bert, save_llama, save_longformer

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.runtime.optimizer import AdafactorConfig, OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models.config import LayerConfig, RewardModelConfig
from reward_models.data.examples import LabelSettings, build_examples, shuffled
from reward_models.encoders.models import new_reward_model
from reward_models.job import TrainRewardModel
from reward_models.kinds import PREFERENCE, RELEVANCE
from reward_models.record import RewardModelRecord
from reward_models.train import RewardModelTrainer
from reward_models.training.objectives import LabelWeights


def test_rates_by_name(tmp_path: Path) -> None:
    """A Longformer of two layers: head 4, layers 1 and 1/2, embeddings 1/4."""
    model = new_reward_model(save_longformer(tmp_path / "encoder"), RewardModelRecord("relevance"))
    rates = LayerConfig(decay=0.5, head=4.0).prepare(model)
    assert rates.keys() == {name for name, _ in model.named_parameters()}
    assert {rate for name, rate in rates.items() if "classifier" in name} == {4.0}
    for part, rate in (("layer.1.", 1.0), ("layer.0.", 0.5), ("embeddings", 0.25)):
        assert {rates[name] for name in rates if part in name} == {rate}, part


def test_the_last_norm_of_a_decoder_counts_as_its_last_layer(tmp_path: Path) -> None:
    model = new_reward_model(save_llama(tmp_path / "llama"), RewardModelRecord("preference"))
    rates = LayerConfig(frozen=1, decay=0.5, head=3.0).prepare(model)
    assert rates["model.model.norm.weight"] == 1.0 and rates["model.score.weight"] == 3.0
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "model.model.embed_tokens.weight" not in trained and not [name for name in trained if "layers.0." in name]
    assert [name for name in trained if "layers.1." in name]


@pytest.mark.parametrize("config", [OptimizerConfig(lr=1e-2), AdafactorConfig(lr=1e-2)])
def test_a_step_moves_what_is_trained_at_its_rate(config: OptimizerConfig, tmp_path: Path) -> None:
    """Adam's first step is lr · sign(gradient): so is the greatest change of each part, times its rate."""
    model = new_reward_model(save_longformer(tmp_path / "encoder"), RewardModelRecord("relevance", max_length=160))
    examples = build_examples(cue_records(8), LabelSettings(RELEVANCE), model.input_encoder(), SpacySegmenter())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    layers = LayerConfig(frozen=1, decay=1, head=0.1)
    settings = RewardModelConfig("relevance", config, BatchConfig(8), steps=5, layers=layers)
    job = TrainRewardModel(output_dir="", data="", model="", reward_model=settings)
    trainer = RewardModelTrainer(job, model, examples, (), Processes())
    trainer.train_step(1)
    moved = {name: float((p.detach() - before[name]).abs().max()) for name, p in model.named_parameters()}
    assert not any(change for name, change in moved.items() if "embeddings" in name or "layer.0." in name)
    if isinstance(config, OptimizerConfig):
        assert moved["model.classifier.weight"] == pytest.approx(1e-3, rel=1e-3)
        assert moved["model.longformer.encoder.layer.1.output.dense.weight"] == pytest.approx(1e-2, rel=1e-2)
    else:
        assert moved["model.longformer.encoder.layer.1.output.dense.weight"] > 0


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    model = new_reward_model(save_bert(tmp_path / "encoder"), RewardModelRecord("relevance"))
    with pytest.raises(ConfigError, match="layers: the model has 1 layers"):
        LayerConfig(frozen=2).prepare(model)
    with pytest.raises(ConfigError, match="expected"):
        LayerConfig(decay=0.0)


def test_balanced_weights_and_shuffled_labels(tmp_path: Path) -> None:
    model = new_reward_model(save_bert(tmp_path / "encoder"), RewardModelRecord("relevance", max_length=160))
    settings, segmenter = LabelSettings(RELEVANCE), SpacySegmenter()
    examples = build_examples(cue_records(24), settings, model.input_encoder(), segmenter)
    labels = [label for example in examples for label in example.labels if label is not None]
    weights = LabelWeights.balanced(examples)
    errors = sum(labels)
    assert weights.has_error * errors == pytest.approx(weights.no_error * (len(labels) - errors))
    assert weights.has_error * errors + weights.no_error * (len(labels) - errors) == pytest.approx(len(labels))
    mixed = shuffled(examples, 0)
    dealt = [label for example in mixed for label in example.labels if label is not None]
    assert sum(dealt) == errors and dealt != labels and [e.inputs for e in mixed] == [e.inputs for e in examples]
    pairs = build_examples(cue_records(24), LabelSettings(PREFERENCE), model.input_encoder(), segmenter)
    turned = [
        a == b for x, y in zip(pairs, shuffled(pairs, 0), strict=True) for a, b in zip(x.pairs, y.pairs, strict=True)
    ]
    assert 0.3 < sum(turned) / len(turned) < 0.7
