"""Components whose satisfied segments are trained away: they earn something, and the policy learns to avoid them.

An advantage is what a token earns beyond a baseline, over all components. Where one component outweighs another, or a
baseline is too high, the segments that satisfy the other get advantages at or below 0 most of the time: its reward is
in the sum, and yet nobody learns it. A warning is a reason to look at weights, no proof.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence

from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, Experience
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.rewards.penalties import PENALTIES
from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)

WINDOW = 20
"""Training steps that are looked at together."""
ENOUGH = 50
"""Satisfied segments within the window from which on a share of them means something."""


def describe_suppression(experience: Experience, metrics: StepMetrics) -> None:
    """Add two numbers a component: its satisfied segments, and the share of them that is trained away.

    `satisfied/NAME` is the mean number of segments a response that earn more than 0 after their weight;
    `suppressed/NAME` the share of those whose tokens have a mean advantage, over all components, of 0 or less. The
    tokens of a segment are those after the component's segment before it. A response whose advantages are all 0, since
    no response to its prompt was better than another, teaches nothing and counts in neither.
    """
    rows = experience.rollout.response_mask.shape[0]
    advantages = experience.advantages.double()
    before = advantages.cumsum(dim=1) - advantages
    teaching = (experience.advantages != 0).any(dim=1).tolist()
    for name, component in experience.trace.components.items():
        satisfied = suppressed = 0
        for row in range(rows):
            if teaching[row]:
                for advantage in _of_satisfied(component, row, before, advantages):
                    satisfied += 1
                    suppressed += advantage <= 0
        metrics.add(f"satisfied/{name}", satisfied, rows)
        metrics.add(f"suppressed/{name}", suppressed, satisfied)


def _of_satisfied(component: ComponentTrace, row: int, before: Tensor, advantages: Tensor) -> list[float]:
    """The sum of the advantages of each satisfied segment's tokens; of its sign alone use is made."""
    tokens = sorted(set(component.tokens[row]))
    if not tokens:
        return []
    earned = component.weighted[row].tolist()
    starts, sums = before[row].tolist(), (before[row] + advantages[row]).tolist()
    firsts = [0, *(token + 1 for token in tokens[:-1])]
    return [sums[last] - starts[first] for first, last in zip(firsts, tokens, strict=True) if earned[last] > 0]


class SuppressionWatch:
    """Warns once in a run of each suppressed component, by the metrics of its latest steps.

    Args:
        processes: of the run; the main process warns.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._steps: deque[Mapping[str, float]] = deque(maxlen=WINDOW)
        self._warned: set[str] = set()

    def warn(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a training step, and log what its window says."""
        self._steps.append(metrics)
        for name, (share, count) in suppressed_components(list(self._steps)).items():
            if name not in self._warned and self._processes.is_main:
                self._warned.add(name)
                logger.warning(
                    "suppressed component? %s: %.0f%% of %.0f segments that earned a positive reward in the last %d "
                    "steps got an advantage of 0 or less in total; see reward.weights.%s and the heat map of its share "
                    "in the advantages",
                    name,
                    100 * share,
                    count,
                    len(self._steps),
                    name,
                )


def suppressed_components(steps: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Components of whose satisfied segments more than half were trained away, by more than chance.

    More than chance is two standard errors of a share of one half, 1 / √n of n segments. Penalties for form, which are
    never satisfied, are left out.

    Args:
        steps: metrics of training steps (`describe_suppression`), with `episodes_per_step`.

    Returns:
        The share that was trained away and the number of satisfied segments, by component.
    """
    names = {key.partition("/")[2] for step in steps for key in step if key.startswith("suppressed/")}
    suppressed = {}
    for name in sorted(names - set(PENALTIES)):
        counts = [step.get(f"satisfied/{name}", 0.0) * step["episodes_per_step"] for step in steps]
        total = sum(counts)
        lost = sum(n * step.get(f"suppressed/{name}", 0.0) for n, step in zip(counts, steps, strict=True))
        if total >= ENOUGH and lost / total > 0.5 + total**-0.5:
            suppressed[name] = (lost / total, total)
    return suppressed
