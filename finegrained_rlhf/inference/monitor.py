"""What measures responses beside the reward: the protocol, and the rates of what was counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from finegrained_rlhf.core.records import Prompt


class ResponseMonitor(Protocol):
    """Measures responses beside the reward, for example by an oracle. It never enters training or selection."""

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(sum, count) of each measurement of R responses; the same names for every input, the empty one included."""


def oracle_rates(counts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """The rates of an oracle over all that it counted; 0 where there is nothing to count.

    Args:
        counts: (found, of how many) by name of the rate, part by part.
    """
    rates: dict[str, float] = {}
    for name in counts[0] if counts else ():
        errors, of = (sum(part[name][place] for part in counts) for place in (0, 1))
        rates[name] = errors / of if of else 0.0
    return rates
