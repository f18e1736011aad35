"""DExperts (Liu et al., 2021): a policy's logits moved by the difference between an expert and an anti-expert."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import ModelName, above, at_most
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.rollout.mixers.protocol import guide, ready

if TYPE_CHECKING:
    from torch import Tensor

    from finegrained_rlhf.models.policy import Policy, PromptMemory
    from finegrained_rlhf.rollout.steppers.base import OpenStepper, Stepper


@dataclass
class DExperts(Settings):
    """z + α (z⁺ − z⁻), over the policy's own nucleus.

    z are the policy's logits, cut to its nucleus before the difference is added, as in the authors' code: sample with
    `top_p` 1 and temperature 1. Without an expert z⁺ is z (their "anti-only").

    Attributes:
        anti_expert: language model of what is not wanted; directory, run or Hub name.
        expert: language model of what is wanted; None takes the policy itself.
        alpha: α; 0 leaves the policy's nucleus as it is.
        nucleus: p of the cut; 1.0 cuts nothing.
    """

    anti_expert: ModelName
    expert: ModelName | None = None
    alpha: float = 2.0
    nucleus: Annotated[float, above(0.0), at_most(1.0)] = 0.9
    _models: Any = field(default=None, init=False, repr=False, compare=False)

    def setup(self, policy: Policy) -> None:
        """See `LogitsMixer.setup`."""
        expert = None if self.expert is None else guide(self.expert, policy)
        self._models = expert, guide(self.anti_expert, policy)

    def open(self, memory: PromptMemory, samples: int, limit: int, open_stepper: OpenStepper) -> _DExpertsMixing:
        """See `LogitsMixer.open`."""
        expert, anti_expert = ready(self._models, "DExperts")

        def opened(policy: Policy) -> Stepper:
            return open_stepper(policy, policy.encode(memory.prompts), samples, limit)

        plus = None if expert is None else opened(expert)
        return _DExpertsMixing(plus, opened(anti_expert), self.alpha, self.nucleus)


class _DExpertsMixing:
    def __init__(self, plus: Stepper | None, minus: Stepper, alpha: float, nucleus: float) -> None:
        self.plus, self.minus, self.alpha = plus, minus, alpha
        self.cut = Sample(1, top_p=nucleus)

    def mix(self, logits: Tensor, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Mixing.mix`."""
        from finegrained_rlhf.models.distribution import warp_logits

        own = logits.float()
        wanted = own if self.plus is None else self.plus.logits(tokens, position, window).float()
        unwanted = self.minus.logits(tokens, position, window).float()
        return warp_logits(own, self.cut) + self.alpha * (wanted - unwanted)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Mixing.keep`."""
        for stepper in (self.plus, self.minus):
            if stepper is not None:
                stepper.keep(prompts, rows)
