"""What the fast engine asks of an architecture: one decoder step over static caches.

`FastEngine` (rollout/fast.py) owns the loop, the sampling and the bookkeeping of rows; a stepper owns weights and
caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from finegrained_rlhf.models.policy import Policy, PromptMemory


class Stepper(Protocol):
    """Runs a policy's decoder one token at a time over P prompts with N rows each; row r answers prompt r // N.

    Attributes:
        first_tokens: int64 [P·N], what every row is fed at position 0 (the decoder's start token, or the last token of
            a causal prompt).
    """

    first_tokens: Tensor

    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """Feed one token a row and get the logits of the next.

        Everything that changes from step to step lies in tensors, so that a CUDA graph can record the call.

        Args:
            tokens: int64 [P·N], fed at `position`.
            position: int64 [1], from 0, on the device; the step's keys and values go there in the cache.
            window: how many cache positions to attend over, position < window <= cache length; those after `position`
                are masked.

        Returns:
            float [P·N, V].
        """

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """Go on with fewer prompts and rows; caches are compacted.

        Args:
            prompts: int64 [P'], which of the present prompts stay, ascending.
            rows: int64 [P'·N'], which of the present rows stay; N' rows of each kept prompt, contiguous.
        """


@runtime_checkable
class ReloadableStepper(Stepper, Protocol):
    """A stepper whose tensors can be filled anew, so that a recorded CUDA graph serves the next rollout too.

    Attributes:
        kept_bytes: of the caches that last with a recording.
    """

    @property
    def kept_bytes(self) -> int:
        """See above."""

    def reload(self, memory: PromptMemory) -> None:
        """Go back to position 0 with the policy's present weights and other prompts, in the same tensors.

        Args:
            memory: as many prompts, of the same padded length, as the stepper was opened with.
        """


OpenStepper = Callable[[Policy, PromptMemory, int, int], Stepper]
"""(policy, memory of P prompts, N rows a prompt, longest response in tokens) → a stepper at position 0."""
