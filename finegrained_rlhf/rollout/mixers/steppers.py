"""Steppers of the fast engine for decoding that a mixer steers, and for models that have no stepper of their own.

`MixedStepper` gives the logits that a mixer has changed. `WholeTextStepper` reads everything anew at every step: slow,
and right for every policy, because it is the policy's own function without a cache. Where a stepper with one exists, it
must give the same logits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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


class WholeTextStepper:
    """See `Stepper`.

    Args:
        policy: any.
        memory: P prompts, encoded by it.
        samples: N rows a prompt.
        max_new_tokens: not needed: nothing is kept between steps but the tokens.
    """

    def __init__(self, policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> None:
        self._policy, self._memory = policy, memory
        self._index = torch.arange(len(memory.prompts), device=policy.device).repeat_interleave(samples)
        self._ids = torch.zeros(self._index.shape[0], 0, dtype=torch.long, device=policy.device)
        self.first_tokens = torch.full_like(self._index, policy.pad_id)

    @torch.no_grad()
    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`. What is fed at position 0 stands in the prompt already, and is not read."""
        if int(position):
            self._ids = torch.cat([self._ids, tokens[:, None]], dim=1)
        states = self._policy.hidden(self._memory, self._index, F.pad(self._ids, (0, 1), value=self._policy.pad_id))
        return self._policy.head(states[:, -1])

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`."""
        self._index, self._ids, self.first_tokens = self._index[rows], self._ids[rows], self.first_tokens[rows]
