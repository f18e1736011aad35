"""Advantages without a value function: a response compared with the others to its prompt, or with the batch.

Every function gives what is compared less its baseline, and the standard deviation beside it; whoever calls divides or
does not. So the parts of a sum can be compared one by one and divided by the spread of the whole: the parts of the
result add up to it. Everything is computed in fp64. Knows no component and no process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from finegrained_rlhf.rl.stats import check_token_tensors

if TYPE_CHECKING:
    from torch import Tensor

Place = Literal["segment", "token", "share"]

EPSILON = 1e-4
"""Added to a group's standard deviation, as TRL and the authors of Dr. GRPO have it."""


@dataclass(frozen=True)
class Compared:
    """Rewards against those of a group.

    Attributes:
        centred: fp64, rewards less their baseline; of the shape of the rewards.
        spread: fp64, the same shape, their group's sample standard deviation (n − 1 in the denominator); 0 where the
            group holds one number.
    """

    centred: Tensor
    spread: Tensor

    def divided(self, epsilon: float = EPSILON) -> Tensor:
        """Centred / (spread + ε), fp64."""
        return self.centred / (self.spread + epsilon)


def compare_outcomes(scores: Tensor, groups: Tensor, *, leave_one_out: bool = False) -> Compared:
    """One number a response against its group's: x_i − mean_j x_j, or x_i − mean_{j≠i} x_j.

    Source: with the mean, Shao et al. (2024, DeepSeekMath), section 4.1.2, where the result is divided by the standard
    deviation, and Liu et al. (2025, Dr. GRPO), where it is not; without the response itself, RLOO: Kool et al. (2019),
    Ahmadian et al. (2024), eq. 8.

    Args:
        scores: fp [R].
        groups: int64 [R], the group of each response.
        leave_one_out: the baseline leaves the response out.

    Raises:
        ValueError: shapes, or a group of one response.
    """
    import torch

    _check_groups(scores[:, None], groups)
    x = scores.double()
    sums, counts = _sums(x, groups), _sums(torch.ones_like(x), groups)
    if bool((counts[groups] < 2).any()):
        raise ValueError("a response needs at least one other of its group to be compared with")
    centred = x - (sums / counts.clamp(min=1))[groups]
    spread = (_sums(centred**2, groups) / (counts - 1).clamp(min=1)).sqrt()[groups]
    if leave_one_out:
        centred = centred * (counts / (counts - 1).clamp(min=1))[groups]
    return Compared(centred, spread)


def compare_segments(rewards: Tensor, ends: Tensor, groups: Tensor, *, leave_one_out: bool = False) -> Compared:
    """Every segment's reward against all segments of all responses of its group.

    Source: Shao et al. (2024, DeepSeekMath), section 4.1.3 (process supervision). A token's advantage is the sum over
    the segments that end at it or later, `rewards_to_go`.

    Args:
        rewards: fp [R, T], each segment's reward at the token that carries it.
        ends: int or bool [R, T], 1 at the tokens that carry a segment; segments that share one count as one.
        groups: int64 [R].
        leave_one_out: the baseline is the mean over the segments of the other responses; 0 where they have none.

    Returns:
        [R, T], 0 where no segment ends.

    Raises:
        ValueError: shapes or types.
    """
    import torch

    check_token_tensors(ends, rewards=rewards)
    _check_groups(rewards, groups)
    here = ends.bool()
    real = here.double()
    x = torch.where(here, rewards.double(), 0.0)
    own, number = x.sum(dim=1), real.sum(dim=1)
    sums, counts = _sums(own, groups)[groups], _sums(number, groups)[groups]
    mean = sums / counts.clamp(min=1)
    squares = ((x - mean[:, None]) ** 2 * real).sum(dim=1)
    spread = (_sums(squares, groups)[groups] / (counts - 1).clamp(min=1)).sqrt()
    if leave_one_out:
        others = counts - number
        mean = torch.where(others > 0, (sums - own) / others.clamp(min=1), 0.0)
    return Compared((x - mean[:, None]) * real, spread[:, None] * real)


def compare_returns(
    rewards: Tensor,
    ends: Tensor,
    mask: Tensor,
    groups: Tensor,
    *,
    at: Place,
    leave_one_out: bool = False,
) -> Compared:
    """What each token still earns, Σ_{t'≥t} r_{t'}, against what the group still earned at the same place.

    The place of token t in response i is, with `segment`, the number of segments that were paid before t: the baseline
    is the mean of what the responses earned from their segment of that number on, 0 for those that had fewer. With
    `token` it is t itself, 0 for shorter responses. With `share` it is t/|y_i|: another response of length |y_j| counts
    with its token ⌊t·|y_j| / |y_i|⌋.

    What is subtracted has no bias where the response itself is left out and its place follows from the tokens before t:
    always with `token`; with `segment` where every segment is paid no earlier than the token that settles that it ends;
    never with `share`, since |y_i| depends on whether token t ends the response. That Σ_{t'≥t} r_{t'} is all that token
    t decides holds where what was paid before t follows from the tokens before t (docs/algorithms.md).

    Args:
        rewards: fp [R, T]; with `segment` zero where no segment ends.
        ends: int or bool [R, T], 1 at the tokens that carry a segment.
        mask: int [R, T], a prefix of ones in each row.
        groups: int64 [R].
        at: `segment`, `token` or `share`.
        leave_one_out: the baseline leaves the response out.

    Returns:
        [R, T], 0 at padding.

    Raises:
        ValueError: shapes or types, or a group of one response.
    """
    import torch

    check_token_tensors(mask, rewards=rewards)
    check_token_tensors(ends, rewards=rewards)
    _check_groups(rewards, groups)
    to_go = rewards_to_go(rewards, mask)
    centred, spread = torch.zeros_like(to_go), torch.zeros_like(to_go)
    for group in groups.unique().tolist():
        rows = (groups == group).nonzero().squeeze(1)
        if len(rows) < 2:
            raise ValueError("a response needs at least one other of its group to be compared with")
        own = to_go[rows]
        if at == "segment":
            there = _at_segment(rewards[rows].double() * mask[rows], ends[rows].long() * mask[rows])
        elif at == "token":
            there = own[None].expand(len(rows), -1, -1)
        else:
            there = _at_share(own, mask[rows].sum(dim=1))
        mean = there.mean(dim=1)  # over the group's responses, [n, T]
        deviation = ((there - mean[:, None]) ** 2).sum(dim=1) / (len(rows) - 1)
        factor = len(rows) / (len(rows) - 1) if leave_one_out else 1.0
        centred[rows], spread[rows] = (own - mean) * factor * mask[rows], deviation.sqrt() * mask[rows]
    return Compared(centred, spread)


def rewards_to_go(rewards: Tensor, mask: Tensor) -> Tensor:
    """Σ_{t'≥t} r_{t'} of each token, undiscounted.

    Args:
        rewards: fp [R, T].
        mask: int [R, T].

    Returns:
        fp64 [R, T], 0 at padding.
    """
    check_token_tensors(mask, rewards=rewards)
    real = mask.double()
    return (rewards.double() * real).flip(1).cumsum(dim=1).flip(1) * real


def _at_segment(rewards: Tensor, ends: Tensor) -> Tensor:
    """[n, n, T]: at (i, j, t) what response j earned from its segment of the number of i's token t on."""
    before = ends.cumsum(dim=1) - ends  # segments that were paid before each token
    width = int(ends.sum(dim=1).max()) + 1
    by_segment = rewards.new_zeros(len(rewards), width).scatter_add_(1, before, rewards * ends)
    from_segment = by_segment.flip(1).cumsum(dim=1).flip(1)  # [n, S]
    return from_segment.T[before].transpose(1, 2)


def _at_share(to_go: Tensor, lengths: Tensor) -> Tensor:
    """[n, n, T]: at (i, j, t) what response j still earned at the share of its tokens at which i's token t stands."""
    import torch

    tokens = torch.arange(to_go.shape[1], device=to_go.device)
    place = tokens * lengths[None, :, None] // lengths.clamp(min=1)[:, None, None]
    place = place.minimum((lengths - 1).clamp(min=0)[None, :, None])  # padding of i
    return to_go[None].expand(len(lengths), -1, -1).gather(2, place)


def _sums(values: Tensor, groups: Tensor) -> Tensor:
    """Sum of the values [n] of each group, [G]."""
    count = int(groups.max()) + 1 if len(groups) else 0
    return values.new_zeros(count).index_add_(0, groups, values)


def _check_groups(rows: Tensor, groups: Tensor) -> None:
    if rows.dim() != 2 or groups.shape != rows.shape[:1] or groups.is_floating_point():
        raise ValueError(f"need groups int64 [R] of rewards [R] or [R, T], got {groups.dtype} {tuple(groups.shape)}")
    if not rows.is_floating_point():
        raise ValueError(f"rewards must be floating point, got {rows.dtype}")
