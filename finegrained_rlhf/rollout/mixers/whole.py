"""Any policy one token at a time, by reading everything anew at every step.

Slow, and right for every policy: it is the policy's own function, without a cache. Where a stepper with one exists, it
must give the same logits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.models.policy import Policy, PromptMemory


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
