"""AdamW and Adafactor with a learning rate that is a function of the step.

Knows parameters by name. Knows no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.runtime.updates import Optimizer

Groups = list[dict[str, Any]]
Named = Iterable[tuple[str, "nn.Parameter"]]
Rates = Callable[[str], float]
"""By the name of a parameter, its learning rate as a multiple of the schedule's, above 0."""


class _Scheduled:
    """What the two configurations share: the learning rate of a step, and the checks of their common fields."""

    lr: float
    weight_decay: float
    warmup_steps: int
    warmup_ratio: float
    schedule: str
    max_grad_norm: float | None
    elementwise: ClassVar[bool] = True
    """Whether an element's update depends on its own gradients alone."""

    def _check(self) -> None:
        if self.lr <= 0 or self.weight_decay < 0:
            raise ConfigError(f"optimizer: need lr > 0 and weight_decay >= 0, got {self}")
        if self.warmup_steps < 0 or not 0 <= self.warmup_ratio <= 1 or (self.warmup_steps and self.warmup_ratio):
            raise ConfigError("optimizer: warmup_steps >= 0 or 0 <= warmup_ratio <= 1, and only one of them")
        if self.schedule not in ("linear", "constant"):
            raise ConfigError(f"optimizer.schedule: expected linear or constant, got {self.schedule!r}")
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise ConfigError(f"optimizer.max_grad_norm: expected null or a positive number, got {self.max_grad_norm}")

    def lr_at(self, step: int, total_steps: int) -> float:
        """The learning rate of training step `step` (from 1).

        With s = step − 1 and W warm-up steps: lr · s / W while s < W; then lr (constant) or
        lr · (total − s) / (total − W) (linear). This is the usual schedule of fine-tuning scripts, whose first
        warm-up step has learning rate 0.

        Returns:
            A rate in [0, lr].
        """
        warmup, done = self._warmup(total_steps), step - 1
        if done < warmup:
            return self.lr * done / warmup
        if self.schedule == "constant":
            return self.lr
        return self.lr * max(0.0, (total_steps - done) / max(1, total_steps - warmup))

    def _warmup(self, total_steps: int) -> int:
        return self.warmup_steps or round(self.warmup_ratio * total_steps)

    def warmup_problem(self, total_steps: int) -> str | None:
        """That the warm-up is as long as the run or longer, in a sentence; None where it ends before."""
        warmup = self._warmup(total_steps)
        if warmup < max(total_steps, 1):
            return None
        reached = self.lr_at(total_steps, total_steps)
        return (
            f"the warm-up of {warmup:,} steps is not over when the run ends after {total_steps:,}: the learning rate "
            f"reaches {reached:.3g} of {self.lr:.3g} (warmup_steps, warmup_ratio)"
        )


@dataclass(frozen=True)
class OptimizerConfig(_Scheduled):
    """AdamW and its schedule.

    Attributes:
        lr: highest learning rate.
        weight_decay: decoupled; 0 makes this Adam. Biases, norms and other vectors are not decayed.
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        warmup_steps: training steps of linear warm-up.
        warmup_ratio: the same as a share of all training steps; only one of the two may be set.
        schedule: after warm-up, "linear" to 0 at the last step, or "constant".
        max_grad_norm: clip the global gradient norm to this; None does not clip.
    """

    lr: float = 1e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    schedule: str = "linear"
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        self._check()
        if self.eps <= 0:
            raise ConfigError(f"optimizer.eps: expected more than 0, got {self.eps}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas: expected two numbers in [0, 1), got {self.betas}")

    def build(
        self, parameters: Named, total_steps: int, processes: Processes | None = None, rates: Rates | None = None
    ) -> Optimizer:
        """An optimizer of these named parameters (`model.named_parameters()`); frozen ones are left out."""
        from finegrained_rlhf.runtime.updates import Optimizer

        return Optimizer(parameters, self, total_steps, processes, rates)

    def make(self, groups: Groups) -> torch.optim.Optimizer:
        """AdamW of these parameter groups."""
        import torch

        return torch.optim.AdamW(
            groups, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay, fused=True
        )

    def moments(self, parameter: Tensor) -> dict[str, torch.Size]:
        """The shape of each part of a parameter's state."""
        import torch

        return {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}


@dataclass(frozen=True)
class AdafactorConfig(_Scheduled):
    """Adafactor with a given learning rate (Shazeer and Stern, 2018) and its schedule.

    The step of a tensor is lr · max(1e-3, RMS(parameter)) times its clipped, normalised gradient (`scale_parameter` on,
    `relative_step` off, no momentum: the defaults of T5's fine-tuning); second moments are factored into rows and
    columns and decay with 1 − t^−0.8.

    Attributes:
        lr: highest relative step; at most 0.01, because torch's Adafactor takes min(lr, 1/√t), which then is lr for
            the first 10,000 updates at least.
        weight_decay: decoupled, on matrices only.
        clip: largest root mean square of a tensor's normalised gradient.
        warmup_steps: training steps of linear warm-up.
        warmup_ratio: the same as a share of all training steps; only one of the two may be set.
        schedule: after warm-up, "linear" to 0 at the last step, or "constant".
        max_grad_norm: clip the global gradient norm to this before; None does not clip.
    """

    lr: float = 1e-4
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    schedule: str = "linear"
    max_grad_norm: float | None = None

    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check()
        if self.lr > 0.01:
            raise ConfigError(f"optimizer.lr: expected at most 0.01 for Adafactor, got {self.lr}")
        if self.clip < 1:
            raise ConfigError(f"optimizer.clip: expected at least 1, got {self.clip}")

    def build(
        self, parameters: Named, total_steps: int, processes: Processes | None = None, rates: Rates | None = None
    ) -> Optimizer:
        """An optimizer of these named parameters (`model.named_parameters()`); frozen ones are left out."""
        from finegrained_rlhf.runtime.updates import Optimizer

        return Optimizer(parameters, self, total_steps, processes, rates)

    def make(self, groups: Groups) -> torch.optim.Optimizer:
        """Adafactor of these parameter groups. torch squares the first epsilon: 1e-30 as in the paper."""
        import torch

        return torch.optim.Adafactor(
            groups, lr=self.lr, eps=(1e-15, 1e-3), d=self.clip, weight_decay=self.weight_decay, foreach=False
        )

    def moments(self, parameter: Tensor) -> dict[str, torch.Size]:
        """The shape of each part of a parameter's state."""
        import torch

        shape = parameter.shape
        if parameter.ndim < 2:
            return {"step": torch.Size(), "variance": shape}
        return {
            "step": torch.Size(),
            "row_var": torch.Size((*shape[:-1], 1)),
            "col_var": torch.Size((*shape[:-2], 1, shape[-1])),
        }


AnyOptimizerConfig = OptimizerConfig | AdafactorConfig
