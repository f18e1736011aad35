"""Training the towers of dense passage retrieval: they learn to retrieve, and a step is one whatever it is cut into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dpr_toy import dpr_files, save_tower
from safetensors.torch import load_file
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.dpr import TrainDPR
from finegrained_rlhf.training.dpr.batches import dpr_batch
from finegrained_rlhf.training.dpr.job import DprSampling
from finegrained_rlhf.training.dpr.trainer import DprTrainer
from finegrained_rlhf.training.supervised import BatchConfig


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dpr_files(tmp_path_factory.mktemp("dpr"))


def job(files: Path, output: Path, **changes: Any) -> TrainDPR:
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "data": str(files / "train.jsonl"),
        "validation_data": str(files / "dev.jsonl"),
        "query_model": str(files / "towers/query"),
        "passage_model": str(files / "towers/passage"),
        "optimizer": OptimizerConfig(lr=1e-2, eps=1e-4, schedule="constant", max_grad_norm=2.0),
        "batches": BatchConfig(8, 8, 8),
        "total_steps": 6,
        "validate_every": 2,
        "checkpoint_every": 2,
        "processes": ProcessConfig(threads=1),
    }
    return TrainDPR(**settings | changes)


def built(training: TrainDPR) -> DprTrainer:
    return training.build(Processes())


def weights(trainer: DprTrainer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


@pytest.mark.parametrize("freeze", [True, False])
def test_a_step_is_the_mean_over_its_queries_whatever_the_micro_batches(
    files: Path, tmp_path: Path, freeze: bool
) -> None:
    """The rate is small: what moves all scores of a query alike, such as the last bias of the passage tower, has no
    gradient but rounding noise, which Adam divides by its own size."""
    found, slow = [], OptimizerConfig(lr=1e-3, eps=1e-4, schedule="constant", max_grad_norm=2.0)
    for size in (1, 3, 8, 64):
        batches = BatchConfig(8, size, size)
        trainer = built(job(files, tmp_path, dropout=0.0, freeze_passages=freeze, batches=batches, optimizer=slow))
        start = weights(trainer)
        metrics = [trainer.train_step(step)["loss"] for step in (1, 2)]
        found.append((metrics, weights(trainer)))
        moved = {name for name, value in weights(trainer).items() if not torch.equal(value, start[name])}
        assert {name.split(".")[0] for name in moved} == ({"query"} if freeze else {"query", "passage"})
    for losses, after in found[1:]:
        assert losses == pytest.approx(found[0][0], abs=1e-5)
        for name, value in after.items():
            torch.testing.assert_close(value, found[0][1][name], atol=1e-5, rtol=0, msg=name)


def test_micro_batches_see_the_same_dropout_twice(files: Path, tmp_path: Path) -> None:
    """The gradient is that of the loss reported: with dropout, a graph kept and a second pass give the same."""
    trainer = built(job(files, tmp_path, batches=BatchConfig(8, 3, 8), freeze_passages=False))
    trainer.model.train()
    texts = [one.ids for one in trainer.train.examples[:8]]
    vectors, into = trainer._encode(trainer.model.query, texts, "query", 1)
    again, _ = trainer._encode(trainer.model.query, texts, "query", 1)
    other, _ = trainer._encode(trainer.model.query, texts, "query", 2)
    assert torch.equal(vectors, again) and not torch.equal(vectors, other)
    seen: list[Tensor] = []
    handle = trainer.model.query.register_forward_hook(lambda module, given, result: seen.append(result.detach()))
    assert into is not None
    into(torch.ones_like(vectors))
    handle.remove()
    order = sorted(range(8), key=lambda i: len(texts[i]))
    assert torch.equal(torch.cat(seen), vectors[order])


def test_the_step_is_torchs_own(files: Path, tmp_path: Path) -> None:
    """Loss and gradient against cross-entropy over a plain loop of single forward passes."""
    trainer = built(job(files, tmp_path, dropout=0.0, freeze_passages=False))
    other = built(job(files, tmp_path, dropout=0.0, freeze_passages=False))
    batch = dpr_batch(trainer.train, DprSampling(), 1, 8, 0)
    towers = other.model

    def vector(tower: Any, ids: tuple[int, ...]) -> Tensor:
        return tower.network(input_ids=torch.tensor([ids])).last_hidden_state[0, 0]  # type: ignore[no-any-return]

    passages = torch.stack([vector(towers.passage, other.train.passages[place]) for place in batch.passages])
    total = torch.zeros(())
    for row, one in enumerate(batch.examples):
        scores = passages @ vector(towers.query, one.ids)
        kept = [i for i, place in enumerate(batch.passages) if place not in one.positives[1:]]
        assert batch.passages[int(batch.targets[row])] == one.positives[0]
        target = torch.tensor(kept.index(int(batch.targets[row])))
        total = total + torch.nn.functional.cross_entropy(scores[kept], target) / 8
    total.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in towers.named_parameters() if p.grad is not None}
    caught: dict[str, Tensor] = {}

    def kept_gradients(step: int) -> float:
        caught.update({name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None})
        return 0.0

    trainer.optimizer_step = kept_gradients  # type: ignore[method-assign]
    assert trainer.train_step(1)["loss"] == pytest.approx(float(total.detach()), abs=1e-5)
    assert caught.keys() == gradients.keys() and len(caught) > 20
    for name, value in caught.items():
        torch.testing.assert_close(value, gradients[name], atol=1e-5, rtol=1e-4)


def test_validation_is_by_rank_and_may_begin_late(files: Path, tmp_path: Path) -> None:
    trainer = built(job(files, tmp_path, best_from_epoch=1, total_steps=6))
    assert trainer.from_step == 3 and trainer.validate(2) == {}
    metrics = trainer.validate(3)
    data, towers = trainer.held_out, trainer.model
    passages = towers.passage.vectors(data.passages, 4)
    ranks = []
    for one in data.examples:
        scores = (passages @ towers.query.vectors([one.ids], 1)[0]).tolist()
        rest = [score for place, score in enumerate(scores) if place not in one.positives]
        ranks.append(1 + sum(score > scores[one.positives[0]] for score in rest))
    assert metrics["mean_rank"] == pytest.approx(sum(ranks) / len(ranks)) and metrics["score"] == -metrics["mean_rank"]
    assert metrics["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))
    by_mrr = built(job(files, tmp_path, total_steps=6, selected_by="mrr")).validate(3)
    assert by_mrr["score"] == by_mrr["mrr"] == metrics["mrr"]
    assert metrics["accuracy"] == pytest.approx(ranks.count(1) / len(ranks)) and metrics["passages"] == 16
    job(files, tmp_path / "run", best_from_epoch=2).run()
    assert [json.loads(line)["step"] for line in (tmp_path / "run/eval.jsonl").open()] == [6]


@pytest.mark.parametrize("freeze", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_bit_identically(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freeze: bool
) -> None:
    more = {"freeze_passages": freeze, "sampling": DprSampling("all")}
    job(files, tmp_path / "whole", **more).run()
    original = DprTrainer.train_step

    def interrupted(self: DprTrainer, step: int) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return original(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(DprTrainer, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job(files, tmp_path / "cut", **more).run()
    job(files, tmp_path / "cut", **more).run()
    for tower in ("query", "passage"):
        whole, cut = (
            load_file(tmp_path / name / "checkpoints/step_6/model" / tower / "model.safetensors")
            for name in ("whole", "cut")
        )
        assert whole.keys() == cut.keys() and all(torch.equal(value, cut[name]) for name, value in whole.items())
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").open()] for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1]


def test_what_cannot_be_trained_is_refused_before_anything_is_made(files: Path, tmp_path: Path) -> None:
    save_tower(tmp_path / "wide", 0, width=16)
    with pytest.raises(ModelError, match="vectors of 16 numbers, that of passages 32"):
        built(job(files, tmp_path, query_model=str(tmp_path / "wide")))
    write_jsonl(tmp_path / "one.jsonl", [{"id": "a", "query": "where", "positives": [{"id": "p", "text": "iron"}]}])
    with pytest.raises(DataError, match=r"one\.jsonl: holds one passage alone"):
        built(job(files, tmp_path, data=str(tmp_path / "one.jsonl")))
    for name, value in (("epochs", 0), ("dropout", 1), ("max_query_tokens", 4), ("validation_negatives", -1)):
        with pytest.raises(ConfigError, match=name):
            job(files, tmp_path, **{name: value})
    with pytest.raises(ConfigError, match="best_from_epoch: expected 0 to epochs, which is 2, got 3"):
        job(files, tmp_path, total_steps=None, epochs=2, best_from_epoch=3)
    with pytest.raises(ConfigError, match="best_from_epoch: expected at most 6 steps, got 9"):
        built(job(files, tmp_path, best_from_epoch=3))
    with pytest.raises(ConfigError, match="batch_size: expected at least 1"):
        BatchConfig(0)


def test_it_learns_to_retrieve(files: Path, tmp_path: Path) -> None:
    """Frozen random passages: the query tower learns where each topic lies, also for queries it has not seen."""
    before = built(job(files, tmp_path / "none")).measured()
    job(files, tmp_path / "run", total_steps=60, validate_every=20, checkpoint_every=60).run()
    measured = read_json(tmp_path / "run/metrics.json")
    assert before["mean_rank"] > 4 and measured["dev"]["mean_rank"] < 2, (before, measured)
    assert measured["train_examples"] == 24 and measured["dev"]["passages"] == 16
