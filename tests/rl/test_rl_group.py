"""Comparisons within a group: numbers by hand, loops over the definitions, sums of parts, padding, refusals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from finegrained_rlhf.rl.group import (
    Compared,
    compare_outcomes,
    compare_returns,
    compare_segments,
    rewards_to_go,
)

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1, 1])
LENGTHS = [6, 1, 4, 3, 6, 2, 5]
MASK = (torch.arange(6) < torch.tensor(LENGTHS)[:, None]).long()


def ragged(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rewards at the ends of segments, and the ends; one response has no segment."""
    generator = torch.Generator().manual_seed(seed)
    ends = ((torch.rand(7, 6, generator=generator) < 0.5) & MASK.bool()).long()
    ends[1] = 0
    assert ends.sum() > 8
    return torch.randn(7, 6, generator=generator, dtype=torch.float64) * ends, ends


def rows_of(group: int) -> list[int]:
    return [row for row, g in enumerate(GROUPS.tolist()) if g == group]


# One number a response -------------------------------------------------------------------------------------------


def test_outcomes_by_hand() -> None:
    # Means 2 and 5; sample deviations √((1+0+1)/2) = 1 and √(8/1) = √8. Leave one out: 1 − (2+3)/2 = −1.5, and so on.
    scores = torch.tensor([1.0, 2.0, 3.0, 3.0, 7.0])
    groups = torch.tensor([0, 0, 0, 1, 1])
    plain = compare_outcomes(scores, groups)
    assert plain.centred.tolist() == [-1.0, 0.0, 1.0, -2.0, 2.0]
    assert plain.spread.tolist() == pytest.approx([1.0, 1.0, 1.0, math.sqrt(8), math.sqrt(8)])
    assert plain.divided().tolist() == pytest.approx([-1 / 1.0001, 0, 1 / 1.0001, -2 / 2.82853, 2 / 2.82853], rel=1e-5)
    assert compare_outcomes(scores, groups, leave_one_out=True).centred.tolist() == [-1.5, 0.0, 1.5, -4.0, 4.0]


def test_equal_scores_teach_nothing() -> None:
    found = compare_outcomes(torch.full((4,), 0.1), torch.zeros(4, dtype=torch.long))
    assert found.divided().tolist() == [0.0] * 4


def test_a_group_of_one_is_refused() -> None:
    lonely = torch.tensor([0, 1, 1])
    with pytest.raises(ValueError, match="at least one other"):
        compare_outcomes(torch.ones(3), lonely)
    with pytest.raises(ValueError, match="at least one other"):
        compare_returns(torch.ones(3, 2), torch.ones(3, 2).int(), torch.ones(3, 2).int(), lonely, at="share")
    for scores, groups in ((torch.ones(3), torch.ones(2).long()), (torch.ones(3), torch.ones(3))):
        with pytest.raises(ValueError, match="groups int64"):
            compare_outcomes(scores, groups)
    with pytest.raises(ValueError, match="floating point"):
        compare_outcomes(torch.ones(3).long(), torch.zeros(3).long())


# Process supervision ---------------------------------------------------------------------------------------------


def test_process_supervision_by_hand() -> None:
    """DeepSeekMath, section 4.1.3: segments of 1 and 2 | 6: mean 3, sample deviation √((4 + 1 + 9) / 2) = √7."""
    rewards = torch.tensor([[0.0, 1.0, 2.0], [6.0, 0.0, 0.0]])
    ends = torch.tensor([[0, 1, 1], [1, 0, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    found = compare_segments(rewards, ends, torch.zeros(2, dtype=torch.long))
    assert found.centred.tolist() == [[0.0, -2.0, -1.0], [3.0, 0.0, 0.0]]
    assert found.spread.tolist() == [[0.0, pytest.approx(7**0.5), pytest.approx(7**0.5)], [pytest.approx(7**0.5), 0, 0]]
    assert rewards_to_go(found.centred, mask).tolist() == [[-3.0, -3.0, -1.0], [3.0, 0.0, 0.0]]
    # Against the segments of the other response: 1 − 6, 2 − 6; 6 − 1.5.
    other = compare_segments(rewards, ends, torch.zeros(2, dtype=torch.long), leave_one_out=True)
    assert other.centred.tolist() == [[0.0, -5.0, -4.0], [4.5, 0.0, 0.0]]


@pytest.mark.parametrize("alone", [False, True])
def test_process_supervision_against_a_loop(alone: bool) -> None:
    rewards, ends = ragged()
    found = compare_segments(rewards, ends, GROUPS, leave_one_out=alone)
    for group in (0, 1):
        pool = {row: [float(rewards[row, t]) for t in range(6) if ends[row, t]] for row in rows_of(group)}
        everything = [x for values in pool.values() for x in values]
        for row in rows_of(group):
            others = [x for other, values in pool.items() if other != row or not alone for x in values]
            for t in range(6):
                expected = float(rewards[row, t]) - (statistics.fmean(others) if others else 0.0) if ends[row, t] else 0
                assert float(found.centred[row, t]) == pytest.approx(expected, abs=1e-12)
                spread = statistics.stdev(everything) if ends[row, t] else 0
                assert float(found.spread[row, t]) == pytest.approx(spread, abs=1e-12)


def test_one_segment_in_a_group_is_compared_with_itself() -> None:
    rewards, ends = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[1, 0], [0, 0]])
    groups = torch.zeros(2, dtype=torch.long)
    assert compare_segments(rewards, ends, groups).divided().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert compare_segments(rewards, ends, groups, leave_one_out=True).centred.tolist() == [[2.0, 0.0], [0.0, 0.0]]


# Returns ---------------------------------------------------------------------------------------------------------


def test_returns_at_one_segment_by_hand() -> None:
    # Segments 1, 2 and 5: still to earn 3, 3, 2 | 5, 0. From segment 0 on both earn 3 and 5, from segment 1 on 2 and 0.
    rewards = torch.tensor([[0.0, 1.0, 2.0], [5.0, 0.0, 0.0]])
    ends, mask = torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    groups = torch.zeros(2, dtype=torch.long)
    found = compare_returns(rewards, ends, mask, groups, at="segment")
    assert found.centred.tolist() == [[-1.0, -1.0, 1.0], [1.0, -1.0, 0.0]]
    assert found.spread[0].tolist() == pytest.approx([2**0.5] * 3)
    alone = compare_returns(rewards, ends, mask, groups, at="segment", leave_one_out=True)
    assert alone.centred.tolist() == [[-2.0, -2.0, 2.0], [2.0, -2.0, 0.0]]


def test_returns_at_one_share_by_hand() -> None:
    # Lengths 3 and 2. Shares 0, 1/3, 2/3 of the first are tokens 0, 0, 1 of the second; 0, 1/2 of that are tokens 0, 1.
    rewards = torch.tensor([[0.0, 1.0, 2.0], [5.0, 0.0, 0.0]])
    ends, mask = torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    alone = compare_returns(rewards, ends, mask, torch.zeros(2, dtype=torch.long), at="share", leave_one_out=True)
    assert alone.centred.tolist() == [[3 - 5.0, 3 - 5.0, 2 - 0.0], [5 - 3.0, 0 - 3.0, 0.0]]


def test_returns_at_one_token_by_hand() -> None:
    # Still to earn 3, 3, 2 and 5, 0, and nothing where the shorter one is over.
    rewards = torch.tensor([[0.0, 1.0, 2.0], [5.0, 0.0, 0.0]])
    ends, mask = torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    alone = compare_returns(rewards, ends, mask, torch.zeros(2, dtype=torch.long), at="token", leave_one_out=True)
    assert alone.centred.tolist() == [[3 - 5.0, 3 - 0.0, 2 - 0.0], [5 - 3.0, 0 - 3.0, 0.0]]


def loop_returns(rewards: Tensor, ends: Tensor, at: str, row: int, t: int) -> tuple[float, list[float]]:
    """What a token still earns, and what every response of its group still earned at its place."""

    def to_go(of: int, first: int) -> float:
        return sum(float(rewards[of, k]) for k in range(first, LENGTHS[of]))

    found = []
    for other in rows_of(int(GROUPS[row])):
        if at == "token":
            found.append(to_go(other, t))
            continue
        if at == "share":
            found.append(to_go(other, t * LENGTHS[other] // LENGTHS[row]))
            continue
        segment = sum(int(ends[row, k]) for k in range(t))
        places = [k for k in range(LENGTHS[other]) if ends[other, k]]
        found.append(sum(float(rewards[other, k]) for k in places[segment:]))
    return to_go(row, t), found


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("at", ["segment", "token", "share"])
def test_returns_against_a_loop(at: str, alone: bool) -> None:
    rewards, ends = ragged(1)
    found = compare_returns(rewards, ends, MASK, GROUPS, at=at, leave_one_out=alone)  # type: ignore[arg-type]
    for row, length in enumerate(LENGTHS):
        for t in range(6):
            centred = spread = 0.0
            if t < length:
                own, group = loop_returns(rewards, ends, at, row, t)
                members = zip(rows_of(int(GROUPS[row])), group, strict=True)
                rest = [x for other, x in members if other != row or not alone]
                centred, spread = own - statistics.fmean(rest), statistics.stdev(group)
            assert float(found.centred[row, t]) == pytest.approx(centred, abs=1e-12)
            assert float(found.spread[row, t]) == pytest.approx(spread, abs=1e-12)


# All of them -----------------------------------------------------------------------------------------------------


def all_of(rewards: Tensor, ends: Tensor, mask: Tensor, groups: Tensor) -> Sequence[Compared]:
    return [
        compare_outcomes(rewards.sum(dim=1), groups, leave_one_out=True),
        compare_segments(rewards, ends, groups),
        compare_segments(rewards, ends, groups, leave_one_out=True),
        compare_returns(rewards, ends, mask, groups, at="segment"),
        compare_returns(rewards, ends, mask, groups, at="share", leave_one_out=True),
    ]


def test_what_is_centred_is_linear_in_the_rewards() -> None:
    """So the shares of components add up."""
    (one, ends), (other, _) = ragged(2), ragged(3)
    other = torch.randn_like(other) * ends
    both = [part.centred for part in all_of(one + other, ends, MASK, GROUPS)]
    parts = zip(all_of(one, ends, MASK, GROUPS), all_of(other, ends, MASK, GROUPS), strict=True)
    for whole, (a, b) in zip(both, parts, strict=True):
        torch.testing.assert_close(a.centred + b.centred, whole, atol=1e-12, rtol=0)
        assert float(whole.abs().max()) > 0.1


def test_padding_the_order_of_groups_and_empty_processes_change_nothing() -> None:
    rewards, ends = ragged(4)
    plain = all_of(rewards, ends, MASK, GROUPS)

    def wide(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, torch.zeros(7, 3, dtype=tensor.dtype)], dim=1)

    for one, other in zip(plain, all_of(wide(rewards), wide(ends), wide(MASK), GROUPS), strict=True):
        width = one.centred.shape[-1]
        torch.testing.assert_close(other.centred[..., :width], one.centred, atol=1e-14, rtol=0)
        assert not other.centred[..., width:].any() or one.centred.dim() == 1
    order = torch.tensor([3, 4, 5, 6, 0, 1, 2])
    for one, other in zip(plain, all_of(rewards[order], ends[order], MASK[order], 1 - GROUPS[order]), strict=True):
        torch.testing.assert_close(other.centred, one.centred[order], atol=1e-14, rtol=0)
    for found in all_of(rewards[:0], ends[:0], MASK[:0], GROUPS[:0]):
        assert found.centred.shape[0] == 0
