"""When rewards are paid: at the token that decides a segment, or as corrections whose sum is the whole reward.

The gradient of the expected sum of rewards is met where, at every token t, what was paid before t is a function of the
tokens before t. So a place of payment must be a stopping time: whether it is reached at t may depend on the tokens up
to t alone. Knows numbers only; what decides a segment is `text/segmentation.py`'s knowledge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def decided_tokens(deciding: Sequence[int | None], settled: Sequence[int]) -> tuple[int, ...]:
    """The first token t with s_t > c_j of each segment j: with it the character is there that decides the segment.

    Args:
        deciding: c_j, the character of the response that decides a segment; None where only its end does.
        settled: s_t of each of T ≥ 1 tokens, not decreasing: characters of the response that stand, whatever follows.

    Returns:
        One token a segment; the last one, T − 1, where no earlier token decides.
    """
    last = len(settled) - 1
    return tuple(last if place is None else min(bisect_right(settled, place), last) for place in deciding)


def spaced_tokens(count: int, longest: int) -> tuple[int, ...]:
    """`count` tokens, evenly spaced over `longest`: ⌈i · longest / (count + 1)⌉ − 1 for i = 1 … count.

    Fixed numbers, so that no token decides where the others are. Fewer where there are not so many tokens.
    """
    return tuple(dict.fromkeys(-(-i * longest // (count + 1)) - 1 for i in range(1, count + 1)))


def corrections(potentials: Sequence[float], whole: float) -> tuple[float, ...]:
    """What is paid for the value of a response that is read again and again: each reading less the one before.

    r_i = Φ_i − Φ_{i−1} with Φ_0 = 0, and Φ(y) − Φ_n at the last token: their sum is Φ(y), the reward of the whole
    response, whatever the readings between were and however many. This is potential-based shaping (Ng et al., 1999) of
    the one reward Φ(y) at the end with γ = 1, which leaves the objective as it is. RUDDER (Arjona-Medina et al., 2019)
    pays the differences of a return that is predicted from prefixes in the same way. With Φ = −S(y_1…y_j) it is the
    thesis's reward against toxicity (section 6.3).

    Args:
        potentials: Φ_1 … Φ_n, the value of each prefix that was read, in order.
        whole: Φ(y).

    Returns:
        n + 1 payments, the last one at the response's last token.
    """
    return tuple(now - before for before, now in zip((0.0, *potentials), (*potentials, whole), strict=True))
