"""Losses and counts of reward models: hand numbers, naive loops and torch's own functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from reward_models.data.examples import RewardExample
from reward_models.encoders.inputs import EncodedInput, InputBatch
from reward_models.training.objectives import (
    labelled_items,
    metrics_of,
    pairwise_loss,
    reward_model_objective,
    segment_loss,
)


def test_pairwise_loss_by_hand() -> None:
    # -log sigmoid(2 - 1) = log(1 + e^-1); -log sigmoid(0) = log 2
    loss = pairwise_loss(torch.tensor([2.0, 5.0]), torch.tensor([1.0, 5.0]))
    assert float(loss.detach()) == pytest.approx(math.log(1 + math.exp(-1)) + math.log(2), abs=1e-6)


@given(st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30)), min_size=1, max_size=8))
def test_pairwise_loss_equals_torch_and_a_loop(scores: list[tuple[float, float]]) -> None:
    better, worse = (torch.tensor(column) for column in zip(*scores, strict=True))
    loop = sum(math.log1p(math.exp(-(b - w))) if b >= w else w - b + math.log1p(math.exp(b - w)) for b, w in scores)
    ours = pairwise_loss(better, worse)
    assert float(ours) == pytest.approx(loop, rel=1e-4, abs=1e-4)
    assert float(ours) == pytest.approx(float(-F.logsigmoid(better - worse).sum()), rel=1e-5, abs=1e-5)
    entropy = F.binary_cross_entropy_with_logits(better - worse, torch.ones_like(better), reduction="sum")
    assert float(ours) == pytest.approx(float(entropy), rel=1e-5, abs=1e-5)


def test_segment_loss_by_hand_and_by_loop() -> None:
    logits, labels = torch.tensor([[0.0, 0.0], [2.0, 1.0]]), torch.tensor([1, 1])
    assert float(segment_loss(logits, labels)) == pytest.approx(math.log(2) + math.log(1 + math.e), abs=1e-6)
    logits, labels = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    loop = -sum(float(row[i] - row.exp().sum().log()) for row, i in zip(logits, labels, strict=True))
    assert float(segment_loss(logits, labels)) == pytest.approx(loop, rel=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pairwise_loss(torch.zeros(2), torch.zeros(3)),
        lambda: pairwise_loss(torch.zeros(2, 1), torch.zeros(2, 1)),
        lambda: segment_loss(torch.zeros(2, 2), torch.zeros(3, dtype=torch.long)),
        lambda: segment_loss(torch.zeros(2), torch.zeros(2, dtype=torch.long)),
    ],
)
def test_wrong_shapes_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


class Fake:
    """A reward model whose outputs are given; `id2label` is of the caller's choice."""

    class tokenizer:
        pad_token_id = 0

    pad_id, device = 0, torch.device("cpu")

    def __init__(self, outputs: list, id2label: dict[int, str] | None = None) -> None:
        self.outputs = torch.tensor(outputs, requires_grad=True)
        self.record = SimpleNamespace(labels_segments=id2label is not None)
        self.model = type("M", (), {"config": type("C", (), {"id2label": id2label or {}})})

    def segment_logits(self, batch: InputBatch) -> torch.Tensor:
        assert len(batch.positions) == len(self.outputs)
        return self.outputs

    def answer_scores(self, batch: InputBatch) -> torch.Tensor:
        assert len(batch.ids) == len(self.outputs)
        return self.outputs


def segments(*labels: int | None) -> RewardExample:
    count = len(labels)
    return RewardExample((EncodedInput((3, *[1] * count, 1), tuple(range(1, count + 1))),), labels)


SCORES = [[3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [9.0, 0.0], [4.0, 0.0], [1.0, 0.0]]


def test_segment_counts_by_hand() -> None:
    # labels 0 1 0 - 1 0; claims 0 1 1 - 0 0 -> found 1, wrongly claimed 1, missed 1, correct 3 of 5
    model = Fake(SCORES, {0: "no_error", 1: "has_error"})
    loss, counts = reward_model_objective(model, [segments(0, 1, 0), segments(None, 1), segments(0)])
    assert counts[1:].tolist() == [5, 3, 1, 1, 1]
    metrics = metrics_of(counts, "segment")
    assert metrics["accuracy"] == pytest.approx(3 / 5)
    assert metrics["f1_has_error"] == pytest.approx(2 / (2 + 1 + 1))
    assert metrics["balanced_accuracy"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert metrics["share_has_error"] == pytest.approx(2 / 5)
    parts = [(0, 0), (1, 1), (2, 0), (4, 1), (5, 0)]
    expected = sum(-F.log_softmax(torch.tensor(SCORES[i]), 0)[label] for i, label in parts)
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-5)
    loss.backward()
    assert model.outputs.grad[3].abs().sum() == 0 and (model.outputs.grad[[0, 1, 2, 4, 5]].abs().sum(1) > 0).all()


def test_reversed_labels_give_the_mirrored_result() -> None:
    examples = [segments(0, 1, 0), segments(None, 1), segments(0)]
    plain = reward_model_objective(Fake(SCORES, {0: "no_error", 1: "has_error"}), examples)
    mirrored = reward_model_objective(Fake([row[::-1] for row in SCORES], {0: "has_error", 1: "no_error"}), examples)
    assert torch.equal(plain[1], mirrored[1])


def test_pair_counts_by_hand() -> None:
    examples = [
        RewardExample((EncodedInput((3, 1), ()),) * 2, pairs=((0, 1), (1, 0))),
        RewardExample((EncodedInput((3, 5, 1), ()),) * 3, pairs=((2, 0), (1, 2))),
    ]
    scores = [1.0, 0.0, 2.0, 3.0, 3.0]
    loss, counts = reward_model_objective(Fake(scores), examples)
    # differences 1, -1, 3 - 2 = 1, 3 - 3 = 0: a tie is no correct pair
    assert counts[1:].tolist() == [4, 2, 5, 9, 1 + 4 + 9 + 9]
    assert metrics_of(counts, "sequence")["pair_accuracy"] == pytest.approx(0.5)
    assert metrics_of(counts, "sequence")["score_std"] == pytest.approx(statistics.pstdev(scores))
    expected = 2 * math.log(1 + math.exp(-1)) + math.log(1 + math.e) + math.log(2)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert labelled_items(examples) == 4 and labelled_items([segments(0, None, 1)]) == 2


def test_metrics_survive_nothing() -> None:
    for form in ("segment", "sequence"):
        assert set(metrics_of(torch.zeros(6), form).values()) == {0.0}


def test_the_spread_of_hardly_different_scores_is_not_lost_to_rounding() -> None:
    example = RewardExample((EncodedInput((3, 1), ()),) * 4, pairs=((0, 1),))
    scores = [1.0, 1.0 + 2**-20, 1.0 - 2**-20, 1.0]
    _, counts = reward_model_objective(Fake(scores), [example])
    assert metrics_of(counts, "sequence")["score_std"] == pytest.approx(statistics.pstdev(scores), rel=1e-3)
