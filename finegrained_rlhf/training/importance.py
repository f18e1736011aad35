"""What is told of importance weights in a training step. The formula is `rl.importance`'s."""

from __future__ import annotations

import torch
from torch import Tensor

from finegrained_rlhf.core.records import ImportanceWeights
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.runtime.processes import Processes


class ImportanceMetrics:
    """Measures the weights of a step, part by part.

    Args:
        metrics: of the step; gets `importance/mean`, `importance/capped` and `importance/gap` (nats a token), also on
            a process that has no response.
    """

    def __init__(self, metrics: StepMetrics) -> None:
        self._metrics, self._parts = metrics, [(0.0, 0.0, 0.0, 0.0)]
        for name in ("mean", "capped", "gap"):
            metrics.add(f"importance/{name}", 0.0, 0.0)

    def add(self, importance: ImportanceWeights, logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor) -> None:
        """Add some responses.

        Args:
            importance: of R responses.
            logprobs: fp32 [R, T] under the policy that is trained.
            sampler_logprobs: fp32 [R, T] as the engine gave them.
            mask: int64 [R, T].
        """
        real = mask.bool()
        tokens = real.sum()
        if not bool(tokens):
            return
        self._metrics.add("importance/mean", importance.weights[real].sum(), tokens)
        self._metrics.add("importance/capped", importance.capped[real].sum(), tokens)
        self._metrics.add("importance/gap", (logprobs - sampler_logprobs)[real].abs().sum(), tokens)
        weights = importance.weights[real].double()
        sums = torch.stack([weights.sum(), weights.square().sum(), importance.ratios[real].max()]).tolist()
        self._parts.append((*sums, float(tokens)))

    def largest(self, processes: Processes) -> dict[str, float]:
        """What is no mean; every process must call this.

        Returns:
            `importance/max`, the largest ratio before the cap on any process, and `importance/effective`, the share of
            the tokens that the weighted ones are worth, (Σw)² / (n Σw²).
        """
        sums, squares, largest, tokens = zip(*processes.gather_objects(self._parts), strict=True)
        worth = sum(tokens) * sum(squares)
        return {"importance/max": max(largest), "importance/effective": sum(sums) ** 2 / worth if worth else 0.0}
