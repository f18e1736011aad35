"""AdamW and Adafactor with a learning rate that is a function of the step, and a state that is saved bit by bit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.core.markers import above, at_least, at_most

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)

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
        if self.warmup_steps and self.warmup_ratio:
            raise ConfigError("optimizer: expected one of warmup_steps and warmup_ratio, got both")

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
class OptimizerConfig(Settings, _Scheduled):
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

    lr: Annotated[float, above(0)] = 1e-5
    weight_decay: Annotated[float, at_least(0)] = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Annotated[float, above(0)] = 1e-8
    warmup_steps: Annotated[int, at_least(0)] = 0
    warmup_ratio: Annotated[float, at_least(0), at_most(1)] = 0.0
    schedule: Literal["linear", "constant"] = "linear"
    max_grad_norm: Annotated[float | None, above(0)] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        self._check()
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas: expected two numbers in [0, 1), got {self.betas}")

    def build(
        self, parameters: Named, total_steps: int, processes: Processes | None = None, rates: Rates | None = None
    ) -> Optimizer:
        """An optimizer of these named parameters (`model.named_parameters()`); frozen ones are left out."""
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
class AdafactorConfig(Settings, _Scheduled):
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

    lr: Annotated[float, above(0), at_most(0.01)] = 1e-4
    weight_decay: Annotated[float, at_least(0)] = 0.0
    clip: Annotated[float, at_least(1)] = 1.0
    warmup_steps: Annotated[int, at_least(0)] = 0
    warmup_ratio: Annotated[float, at_least(0), at_most(1)] = 0.0
    schedule: Literal["linear", "constant"] = "linear"
    max_grad_norm: Annotated[float | None, above(0)] = None

    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._check()

    def build(
        self, parameters: Named, total_steps: int, processes: Processes | None = None, rates: Rates | None = None
    ) -> Optimizer:
        """An optimizer of these named parameters (`model.named_parameters()`); frozen ones are left out."""
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


def _groups(owned: Mapping[str, Tensor], rates: Rates | None) -> Groups:
    """Parameters (of any shape) of one rate and one decay together; vectors are not decayed."""
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in owned.items():
        rate, decayed = 1.0 if rates is None else rates(name), parameter.ndim >= 2
        unlike: dict[str, Any] = {} if decayed else {"weight_decay": 0.0}
        group = groups.setdefault((-rate, not decayed), {"params": [], "rate": rate, **unlike})
        group["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


class Optimizer:
    """AdamW or Adafactor over named parameters, which several processes may share out among them.

    Args:
        parameters: (name, parameter) pairs; those that need no gradient are left out.
        config: rates and schedule.
        total_steps: training steps that the schedule spans.
        processes: whose gradients are summed before an update, and how they share it out (`processes.sharding`); None
            for this process alone.
        rates: learning rates of single parameters, relative to the schedule; None is 1 for all.
    """

    def __init__(
        self,
        parameters: Named,
        config: AnyOptimizerConfig,
        total_steps: int,
        processes: Processes | None = None,
        rates: Rates | None = None,
    ) -> None:
        from finegrained_rlhf.runtime.sharding.share import OwnShare

        self.named = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        if not self.named:
            raise ConfigError("optimizer: no parameter needs a gradient")
        self.config, self.total_steps, self._summed = config, total_steps, False
        self.share = OwnShare(self.named, processes)
        if len(self.share.common) < len(self.named) and not config.elementwise:
            raise ConfigError("optimizer: Adafactor needs whole matrices; processes.sharding=full needs AdamW")
        if (problem := config.warmup_problem(total_steps)) and (processes is None or processes.is_main):
            logger.warning("optimizer: %s", problem)
        groups = _groups(self.share.parameters, rates)
        self._inner = config.make(groups) if groups else None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters, in a fixed order."""
        return list(self.named.values())

    def lr(self, step: int) -> float:
        """The learning rate of a training step (from 1)."""
        return self.config.lr_at(step, self.total_steps)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.share.drop_gradients()
        self._summed = False

    def sum_gradients(self) -> None:
        """Sum the gradients over processes, where that has not been done for the next update yet.

        Between the first backward pass of an update and this, no other collective call may be made.
        """
        if not self._summed:
            self.share.sum_gradients()
            self._summed = True

    def step(self, step: int) -> float:
        """Sum the gradients over processes and make one update with the learning rate of training step `step` (from 1).

        A training step may make several updates. Parameters without a gradient count as having gradient 0. Gradients
        are dropped afterwards.

        Returns:
            The global gradient norm before clipping.
        """
        from torch import nn
        from torch.autograd.graph import increment_version

        self.sum_gradients()
        norm = self.share.norm()
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.share.parameters.values(), self.config.max_grad_norm, norm)
        if self._inner is not None:
            for group in self._inner.param_groups:
                group["lr"] = self.lr(step) * group["rate"]
            self._inner.step()
        self.share.spread()
        increment_version(self.parameters)  # torch's fused AdamW does not say that it has changed them
        self.zero_grad()
        return float(norm)

    def to_save(self, name: str = "optimizer") -> Write:
        """What this process has to write of the moments, taken now; every process must call this.

        Where they are shared out, every process writes its own to `name.RANK-of-COUNT.safetensors`; else the main
        process writes all to `name.safetensors`.
        """
        import torch
        from safetensors.torch import save_file

        share = self.share
        if share.rank > 0 and share.is_all:
            return write_all(())
        tensors = {}
        written = {key: own for key, own in share.parameters.items() if key not in share.copied}
        for key, parameter in written.items():
            for moment, value in (self._inner.state.get(parameter, {}) if self._inner else {}).items():
                tensors[f"{moment}/{key}"] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
        file = f"{name}.safetensors" if share.is_all else f"{name}.{share.rank + 1}-of-{share.count}.safetensors"
        return lambda directory: save_file(tensors, directory / file)

    def load(self, directory: Path, name: str = "optimizer") -> None:
        """Read what `to_save` wrote, by however many processes.

        Raises:
            CheckpointError: a file is missing, or belongs to other parameters.
        """
        from finegrained_rlhf.runtime.sharding.moments import StoredMoments

        stored = StoredMoments.open(directory, name)
        stored.check(self.named)
        for key, parameter in self.share.parameters.items() if stored.names else ():
            assert self._inner is not None
            shapes, rows = self.config.moments(self.named[key]), self.share.rows(key)
            self._inner.state[parameter] = {
                moment: stored.read(moment, key, shape, rows).to(parameter.device) for moment, shape in shapes.items()
            }
