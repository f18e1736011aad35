"""Which changes between two validations may be chance.

Both validations answer the same n prompts. A change counts when it is larger than 1.96 standard errors (95%, normal
approximation): estimated from the kept answers for rewards, bounded from above for shares, whose means alone are kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.runtime.directory.samples import SampleRecord

Z = 1.96
SHARE_FLOOR = 0.01
"""Changes of a share below this never count."""
FEWEST = 4
"""Answers that a spread is estimated from, at least."""
Values = Callable[[Sequence[SampleRecord]], list[float]]
"""What an answer adds to a mean over answers: a number for each of them."""


def of_total(answers: Sequence[SampleRecord]) -> list[float]:
    """The weighted total of each answer."""
    return [answer.total for answer in answers]


def of_component(name: str) -> Values:
    """The raw sum of a component over each answer."""
    return lambda answers: [answer.totals(name)[0] for answer in answers]


def of_segments(name: str) -> Values:
    """What each answer adds to the mean of a segment: a ratio of sums, linearised about its value.

    With R = Σx/Σn, answer i adds R + (x_i − R·n_i) / mean(n).
    """

    def values(answers: Sequence[SampleRecord]) -> list[float]:
        sums = [answer.totals(name)[0] for answer in answers]
        counts = [len(answer.of(name)) for answer in answers]
        if not sum(counts):
            return []
        ratio, mean = sum(sums) / sum(counts), sum(counts) / len(counts)
        return [ratio + (x - ratio * n) / mean for x, n in zip(sums, counts, strict=True)]

    return values


def paired_noise(
    before: Sequence[SampleRecord], now: Sequence[SampleRecord], values: Values, examples: Any
) -> float | None:
    """1.96 standard errors of the mean difference of two validations over the same prompts.

    Args:
        before: kept answers of the first validation.
        now: kept answers of the other one.
        values: what the mean is of.
        examples: answers of a whole validation; the spread of the kept ones stands for all of them.

    Returns:
        None where fewer than four prompts were kept in both.
    """
    first, second = _by_prompt(before), _by_prompt(now)
    shared = [key for key in first if key in second]
    if len(shared) < FEWEST:
        return None
    old, new = values([first[key] for key in shared]), values([second[key] for key in shared])
    if len(old) != len(new) or not old:
        return None
    spread = statistics.stdev(b - a for a, b in zip(old, new, strict=True))
    count = float(examples) if is_number(examples) and examples > 0 else len(shared)
    return Z * spread / math.sqrt(count)


def share_noise(first: float, after: float, examples: Any) -> float | None:
    """1.96 standard errors of the difference of two shares, at most; never below `SHARE_FLOOR`.

    A mean of n values within [0, 1] has a variance of p(1 − p)/n at most. Answers to the same prompts vary together,
    which makes the true error smaller: a change that counts here counts. None where n is unknown.
    """
    if not is_number(examples) or examples <= 0:
        return None
    return max(SHARE_FLOOR, Z * math.sqrt((first * (1 - first) + after * (1 - after)) / examples))


def _by_prompt(answers: Sequence[SampleRecord]) -> Mapping[str, SampleRecord]:
    return {answer.id: answer for answer in reversed(answers)}
