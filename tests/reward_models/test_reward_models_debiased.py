"""Counted words as a bias model: in the loss of training as the product of two experts, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from feedback_samples import record
from reward_model_samples import prompt, save_bert, save_llama
from share_toy import Share

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models.config import RewardModelConfig
from reward_models.encoders.counts import CountLayer
from reward_models.encoders.inputs import pad_inputs
from reward_models.encoders.models import load_reward_model
from reward_models.job import TrainRewardModel
from reward_models.scorers import SegmentScorer, SequenceScorer
from reward_models.train import RewardModelTrainer, assemble_reward_model
from reward_models.training.objectives import reward_model_objective

KINDS = ("relevance", "preference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long answers are wrong, and people prefer the shorter ones: counts say much, though not all."""
    path = tmp_path_factory.mktemp("debiased")
    save_bert(path / "bert")
    save_llama(path / "llama")
    long, short = "It is a very bad one, and it goes on and on for long.", "It is cold and wide."
    answers = [(f"{short} {long}", [(long, "Irrelevant")]), (f"{short} Yes!", []), (short, [(short, "Irrelevant")])]
    others = (f"{long} {short}", "It is cold.", "It was warm; not so, they say.")
    preferred = ((0, 1, 2, 1, 0, 2), (0, 1, 2, 1, 0, 2), (0, 2, 1, 2, 0, 1))
    records = [record(*answers[i % 3], others=others, preferences=preferred[i % 3], name=f"r{i}") for i in range(12)]
    write_feedback(path / "feedback.json", records)
    return path


def job(folder: Path, output: Path, kind: str, counts: Any = "debias", base: str = "bert", **changes: Any) -> Any:
    batches = BatchConfig(batch_size=16 if kind == "preference" else 6, eval_batch_size=4)
    rate = OptimizerConfig(lr=5e-3, warmup_ratio=0.1)
    config = RewardModelConfig(kind, rate, batches, steps=4, max_length=160, counts=counts)
    fields = {"data": str(folder / "feedback.json"), "model": str(folder / base), "output_dir": str(output)}
    return TrainRewardModel(**{**fields, "held_out": 0.25, "checkpoint_every": 2, "reward_model": config, **changes})


def assembled(
    folder: Path, kind: str, counts: Any = "debias", processes: Processes | None = None
) -> RewardModelTrainer:
    """A trainer of a decoder-only model, which has no dropout, always with the same head."""
    torch.manual_seed(0)
    made = assemble_reward_model(job(folder, folder / "none", kind, counts, "llama"), processes or Processes())
    assert isinstance(made, RewardModelTrainer)
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith("time/")}
        for line in path.read_text().splitlines()
    ]


@pytest.mark.parametrize("base", ["bert", "llama"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_trained_as_with_counts_and_is_scored_without(folder: Path, tmp_path: Path, kind: str, base: str) -> None:
    """To the bit what `counts=true` learns; then every score is that of the encoder alone."""
    for name, counts in (("debiased", "debias"), ("counted", True)):
        job(folder, tmp_path / name, kind, counts, base).run()
    debiased, counted = tmp_path / "debiased", tmp_path / "counted"
    assert lines(debiased / "metrics.jsonl") == lines(counted / "metrics.jsonl")
    last = "checkpoints/step_4/model/model.safetensors"
    assert (debiased / last).read_bytes() == (counted / last).read_bytes()
    assert not list(debiased.rglob(CountLayer.FILE)) and list(counted.rglob(CountLayer.FILE))
    record = json.loads((debiased / "model/reward_model.json").read_text())
    assert record["counts"] is False

    def scores(model: Any) -> list[tuple[float, ...]]:
        encoded = model.input_encoder().encode(
            [model.record.definition.parts("What is the lake like?", [], answer(model)) for answer in ANSWERS]
        )
        batch = pad_inputs(encoded, model.pad_id)
        with torch.no_grad():
            logits = model.segment_logits(batch) if model.record.labels_segments else model.answer_scores(batch)
        return logits.tolist()

    ours = load_reward_model(debiased / "checkpoints/step_4/model")
    theirs = load_reward_model(counted / "checkpoints/step_4/model")
    assert ours.counts is None and theirs.counts is not None
    with_counts, theirs.counts = scores(theirs), None
    assert scores(ours) == scores(theirs) != with_counts
    scorer = (SegmentScorer if ours.record.labels_segments else SequenceScorer)(str(debiased))
    assert len(scorer.score([prompt(passages=())], ["It is cold. It is wide."]).values) == 1


ANSWERS = [
    lambda model: ["It is cold.", "It is wide, and on."] if model.record.labels_segments else "It is cold. It is wide.",
    lambda model: ["Yes!"] if model.record.labels_segments else "Yes!",
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_of_the_product_of_two_experts(folder: Path, kind: str) -> None:
    """Probabilities multiplied and normalised, one item at a time."""
    made = assembled(folder, kind)
    assert made.bias is not None and float(made.bias.weight.abs().max()) > 0.05
    examples = made.plan._examples
    with torch.no_grad():
        loss, sums = reward_model_objective(made.model, examples, made.weights, made.bias)
        alone, _ = reward_model_objective(made.model, examples, made.weights)
    expected = items = 0.0
    for example in examples:
        for logits, counts, label in _items(made, example):
            product = logits.softmax(-1) * made.bias.of(counts).softmax(-1)
            expected -= float((product / product.sum())[label].log())
            items += 1
        for better, worse in example.pairs:
            by_encoder = _scores(made, example)
            gaps = [values[better] - values[worse] for values in (by_encoder, _said(made, example))]
            wins = torch.stack(gaps).sigmoid()
            expected -= float((wins.prod() / (wins.prod() + (1 - wins).prod())).log())
            items += 1
    assert float(loss) == pytest.approx(expected, rel=1e-4) and float(sums[1]) == items
    assert abs(float(alone) - expected) > 0.1


def _batch(made: RewardModelTrainer, example: Any) -> Any:
    return pad_inputs(example.inputs, made.model.pad_id)


def _items(made: RewardModelTrainer, example: Any) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """Logits of the encoder, counts and label of each labelled segment."""
    if not example.labels:
        return []
    batch = _batch(made, example)
    with torch.no_grad():
        rows = zip(made.model.segment_logits(batch), batch.counts, example.labels, strict=True)
    return [(logits, counts, label) for logits, counts, label in rows if label is not None]


def _scores(made: RewardModelTrainer, example: Any) -> torch.Tensor:
    with torch.no_grad():
        return made.model.answer_scores(_batch(made, example))


def _said(made: RewardModelTrainer, example: Any) -> torch.Tensor:
    assert made.bias is not None
    return made.bias.of(torch.tensor([item.counts[0] for item in example.inputs])).squeeze(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_validation_is_of_the_encoder_alone(folder: Path, kind: str) -> None:
    made, plain = assembled(folder, kind), assembled(folder, kind, counts=False)
    assert made.validate(0) == pytest.approx(plain.validate(0), abs=1e-6)
    assert made.train_step(1)["loss"] != pytest.approx(plain.train_step(1)["loss"], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_processes_add_up(folder: Path, kind: str) -> None:
    def gradients(rank: int, count: int) -> list[torch.Tensor]:
        share = Share(rank, count)
        made = assembled(folder, kind, processes=share)
        made.train_step(next(step for step in range(1, 5) if len(made.batch(step)) > 1))
        return share.gradients

    whole, first, second = (gradients(*place) for place in ((0, 1), (0, 2), (1, 2)))
    assert any(bool(g.any()) for g in first) and any(bool(g.any()) for g in second)
    for one, a, b in zip(whole, first, second, strict=True):
        torch.testing.assert_close(a + b, one, atol=1e-6, rtol=1e-4)


def test_a_resumed_run_equals_an_uninterrupted_one(folder: Path, tmp_path: Path) -> None:
    """The bias model is fitted again, to the same labels."""
    job(folder, tmp_path / "whole", "relevance").run()
    step = RewardModelTrainer.train_step

    def killed(self: RewardModelTrainer, number: int) -> dict[str, float]:
        if number == 4:
            raise KeyboardInterrupt
        return step(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RewardModelTrainer, "train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            job(folder, tmp_path / "parts", "relevance").run()
    job(folder, tmp_path / "parts", "relevance").run()
    for name in ("metrics.json", "model/reward_model.json"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert lines(tmp_path / "parts/metrics.jsonl") == lines(tmp_path / "whole/metrics.jsonl")
    last = "checkpoints/step_4/model/model.safetensors"
    assert (tmp_path / "parts" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="counts"):
        RewardModelConfig("relevance", OptimizerConfig(lr=1e-3), steps=1, counts="product")  # type: ignore[arg-type]
