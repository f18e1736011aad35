"""A stepper whose logits a mixer has changed: how decoding that other models steer gets into the fast engine."""

from __future__ import annotations

from torch import Tensor

from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer, Mixing
from finegrained_rlhf.rollout.steppers.base import OpenStepper, Stepper


class MixedStepper:
    """See `Stepper`. It cannot be filled anew, so that its steps are not recorded as CUDA graphs.

    Args:
        stepper: the policy's own.
        mixing: opened for the same rows.
    """

    def __init__(self, stepper: Stepper, mixing: Mixing) -> None:
        self._stepper, self._mixing = stepper, mixing
        self.first_tokens = stepper.first_tokens

    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`: those that the mixer makes of the policy's, fp32 [P·N, V]."""
        return self._mixing.mix(self._stepper.logits(tokens, position, window), tokens, position, window)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`."""
        self._stepper.keep(prompts, rows)
        self._mixing.keep(prompts, rows)
        self.first_tokens = self._stepper.first_tokens


def mixed(open_stepper: OpenStepper, mixer: LogitsMixer, open_other: OpenStepper) -> OpenStepper:
    """What opens a policy's stepper with a mixer behind it.

    Args:
        open_stepper: of the policy.
        mixer: already set up.
        open_other: of the models that the mixer asks.
    """

    def opened(policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> Stepper:
        own = open_stepper(policy, memory, samples, max_new_tokens)
        return MixedStepper(own, mixer.open(memory, samples, max_new_tokens, open_other))

    return opened
