"""An optimizer over named parameters that processes may share out, whose state is saved bit by bit.

Knows which parameters this process updates. Knows no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.runtime.optimizer import AnyOptimizerConfig, Groups, Named, Rates
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sharding.moments import StoredMoments
from finegrained_rlhf.runtime.sharding.share import OwnShare

logger = logging.getLogger(__name__)


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
        self.sum_gradients()
        norm = self.share.norm()
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.share.parameters.values(), self.config.max_grad_norm, norm)
        if self._inner is not None:
            for group in self._inner.param_groups:
                group["lr"] = self.lr(step) * group["rate"]
            self._inner.step()
        self.share.spread()
        self.zero_grad()
        return float(norm)

    def to_save(self, name: str = "optimizer") -> Write:
        """What this process has to write of the moments, taken now; every process must call this.

        Where they are shared out, every process writes its own to `name.RANK-of-COUNT.safetensors`; else the main
        process writes all to `name.safetensors`.
        """
        share = self.share
        if share.rank > 0 and share.is_all:
            return write_all(())
        tensors = {}
        for key, parameter in share.parameters.items():
            for moment, value in (self._inner.state.get(parameter, {}) if self._inner else {}).items():
                tensors[f"{moment}/{key}"] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
        file = f"{name}.safetensors" if share.is_all else f"{name}.{share.rank + 1}-of-{share.count}.safetensors"
        return lambda directory: save_file(tensors, directory / file)

    def load(self, directory: Path, name: str = "optimizer") -> None:
        """Read what `to_save` wrote, by however many processes.

        Raises:
            CheckpointError: a file is missing, or belongs to other parameters.
        """
        stored = StoredMoments.open(directory, name)
        stored.check(self.named)
        for key, parameter in self.share.parameters.items() if stored.names else ():
            assert self._inner is not None
            shapes, rows = self.config.moments(self.named[key]), self.share.rows(key)
            self._inner.state[parameter] = {
                moment: stored.read(moment, key, shape, rows).to(parameter.device) for moment, shape in shapes.items()
            }
