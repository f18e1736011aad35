"""Masked statistics: numbers by hand, naive loops, numpy; ranks are simulated by adding their sufficient statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from finegrained_rlhf.rl.stats import RunningMoments, masked_mean, masked_var, masked_whiten

VALUES = torch.tensor([[1.0, 2.0, 900.0], [3.0, 6.0, 8.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def ranks(pieces: list[tuple[Tensor, Tensor]], call: Callable[[Tensor, Tensor, Callable], object]) -> list[object]:
    """Run `call` for every rank as if all ran together: rank r's k-th reduction returns the sum of all k-th ones."""
    sums: list[Tensor] = []
    for _ in range(10):
        sent: list[list[Tensor]] = [[] for _ in pieces]

        def reduce(tensor: Tensor, rank: int, sums: list[Tensor] = sums, sent: list[list[Tensor]] = sent) -> Tensor:
            sent[rank].append(tensor.clone())
            return sums[len(sent[rank]) - 1].clone() if len(sent[rank]) <= len(sums) else tensor

        results = [call(v, m, partial(reduce, rank=rank)) for rank, (v, m) in enumerate(pieces)]
        if all(len(mine) == len(sums) for mine in sent):
            return results
        assert all(len(mine) > len(sums) for mine in sent)  # every rank makes the same collective calls
        sums.append(torch.stack([mine[len(sums)] for mine in sent]).sum(dim=0))
    raise AssertionError("too many reductions")


def test_mean_and_variance_by_hand() -> None:
    mean = masked_mean(VALUES, MASK)
    assert float(mean) == 4.0  # (1 + 2 + 3 + 6 + 8) / 5
    assert float(masked_var(VALUES, MASK, mean)) == pytest.approx(6.8)  # (9 + 4 + 1 + 4 + 16) / 5
    assert mean.dtype == torch.float64 and mean.dim() == 0


def test_against_numpy_on_random_masks() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        values = torch.randn(7, 11, generator=generator) * 3 + 1
        mask = (torch.rand(7, 11, generator=generator) > 0.4).long()
        real = values.numpy().astype(np.float64)[mask.numpy() == 1]
        mean = masked_mean(values, mask)
        assert float(mean) == pytest.approx(real.mean(), abs=1e-12)
        assert float(masked_var(values, mask, mean)) == pytest.approx(real.var(), abs=1e-12)


def test_nothing_counted_is_zero_and_shapes_must_agree() -> None:
    none = torch.zeros_like(MASK)
    assert float(masked_mean(VALUES, none)) == 0.0
    assert float(masked_var(VALUES, none, masked_mean(VALUES, none))) == 0.0
    assert torch.equal(masked_whiten(VALUES, none), torch.zeros_like(VALUES))
    with pytest.raises(ValueError, match="one shape"):
        masked_mean(VALUES, MASK[:, :2])
    with pytest.raises(ValueError, match="one shape"):
        masked_var(VALUES, MASK[:1], torch.tensor(0.0))


def test_variance_does_not_cancel_far_from_zero() -> None:
    values = torch.tensor([[4097.0, 4098.0, 4099.0]])  # E[x²] − E[x]² in fp32 has no digit left here
    mask = torch.ones_like(values, dtype=torch.long)
    assert float(masked_var(values, mask, masked_mean(values, mask))) == pytest.approx(2 / 3, abs=1e-12)


def test_whitening_divides_by_the_standard_deviation() -> None:
    whitened = masked_whiten(VALUES, MASK, epsilon=0.0)
    expected = (np.array([1, 2, 3, 6, 8]) - 4) / math.sqrt(6.8)
    np.testing.assert_allclose(whitened[MASK.bool()].numpy(), expected, atol=1e-6)
    assert whitened.dtype == VALUES.dtype
    # The fault of the original: √std in the place of std. Ten times the rewards must give the same result.
    torch.testing.assert_close(masked_whiten(10 * VALUES, MASK, epsilon=0.0), whitened)


def test_whitening_can_keep_the_mean() -> None:
    kept = masked_whiten(VALUES, MASK, shift_mean=False, epsilon=0.0)
    expected = (np.array([1, 2, 3, 6, 8]) - 4) / math.sqrt(6.8) + 4
    np.testing.assert_allclose(kept[MASK.bool()].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whitening_leaves_padding_zero_and_ignores_it(shift_mean: bool) -> None:
    whitened = masked_whiten(VALUES, MASK, shift_mean=shift_mean)
    assert whitened[0, 2] == 0.0
    other = VALUES.clone()
    other[0, 2] = float("nan")
    assert torch.equal(masked_whiten(other, MASK, shift_mean=shift_mean), whitened)


def test_constant_values_stay_finite() -> None:
    whitened = masked_whiten(torch.full((2, 3), 5.0), torch.ones(2, 3, dtype=torch.long))
    assert torch.equal(whitened, torch.zeros(2, 3))


@pytest.mark.parametrize("shift_mean", [True, False])
def test_ranks_of_unequal_size_whiten_like_one(shift_mean: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(5, 4, generator=generator)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    whole = masked_whiten(values, mask, shift_mean=shift_mean)
    pieces = [(values[:1], mask[:1]), (values[1:], mask[1:]), (values[:0], mask[:0])]  # the last rank has no row
    parts = ranks(pieces, lambda v, m, reduce: masked_whiten(v, m, shift_mean=shift_mean, reduce=reduce))
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-7, rtol=0)
    alone = masked_whiten(values[1:], mask[1:], shift_mean=shift_mean)
    assert float((alone - whole[1:]).abs().max()) > 1e-2  # so the check above sees a missing reduction


def test_running_moments_by_hand_and_against_numpy() -> None:
    moments = RunningMoments()
    assert moments.std == 1.0
    moments.update(torch.tensor([2.0]))
    assert (moments.mean, moments.std) == (2.0, 1.0)  # one number says nothing about the spread
    moments.update(torch.tensor([4.0, 9.0]))
    assert moments.mean == pytest.approx(5.0)
    assert moments.std == pytest.approx(math.sqrt(26 / 3))  # (9 + 1 + 16) / 3
    stream = np.random.default_rng(0).normal(3, 2, 100)
    moments = RunningMoments()
    for batch in np.split(stream, [1, 7, 7, 40]):  # the third batch is empty
        moments.update(torch.tensor(batch))
    assert moments.count == 100
    assert moments.mean == pytest.approx(stream.mean(), abs=1e-12)
    assert moments.std == pytest.approx(stream.std(), abs=1e-12)


def test_running_moments_of_ranks_are_those_of_all() -> None:
    stream = torch.tensor([1.0, 5.0, 2.0, 8.0, 8.0])
    empty = torch.zeros(0)

    def update(values: Tensor, mask: Tensor, reduce: Callable) -> RunningMoments:
        moments = RunningMoments(2.0, 1.0, 3.0)
        moments.update(values, reduce)
        return moments

    expected = RunningMoments(2.0, 1.0, 3.0)
    expected.update(stream)
    pieces = [(stream[:1], empty), (stream[1:], empty), (empty, empty)]
    for moments in ranks(pieces, update):
        assert moments.count == 7
        assert moments.mean == pytest.approx(expected.mean)
        assert moments.m2 == pytest.approx(expected.m2)


def test_whitening_by_the_root_of_the_standard_deviation_is_the_original_fault() -> None:
    """By hand: 1 and 17 have standard deviation 8, so the original divides by √8 and leaves a deviation of √8."""
    values, mask = torch.tensor([[1.0, 17.0, 99.0]]), torch.tensor([[1, 1, 0]])
    theirs = masked_whiten(values, mask, by_root_std=True)
    assert theirs[0].tolist() == pytest.approx([-8 / 8**0.5, 8 / 8**0.5, 0.0], abs=1e-5)
    assert masked_whiten(values, mask)[0].tolist() == pytest.approx([-1.0, 1.0, 0.0], abs=1e-5)
