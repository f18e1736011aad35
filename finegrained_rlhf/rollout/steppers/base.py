"""What the fast engine asks of an architecture: one decoder step over static caches.

`FastEngine` (rollout/fast.py) owns the loop, the sampling and the bookkeeping of rows; a stepper owns weights and
caches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Block:
    """M tokens that are fed at once: of each row some, contiguous and in order, or none.

    Attributes:
        rows: int64 [M], the present row of each token, ascending.
        places: int64 [M], the position of each token in its row, from 0; its keys and values go there in the cache.
        slots: int64 [M], where each lies among R·B, B a row.
        width: B, most tokens of a row.
        window: how many cache positions to attend over, more than any of `places`; each token sees those up to its own.
    """

    rows: Tensor
    places: Tensor
    slots: Tensor
    width: int
    window: int

    def padded(self, tokens: Tensor, rows: int) -> Tensor:
        """[R, B, …] of [M, …] for R rows, 0 where a row has no token."""
        padded = tokens.new_zeros(rows * self.width, *tokens.shape[1:]).index_copy_(0, self.slots, tokens)
        return padded.unflatten(0, (rows, self.width))

    def flat(self, padded: Tensor) -> Tensor:
        """[M, …] of [R, B, …]."""
        return padded.flatten(0, 1).index_select(0, self.slots)

    def write(self, cache: Tensor, new: Tensor) -> None:
        """Put new keys and values [M, 2, H, d] into a cache [2, R, H, T, d]."""
        cache[:, self.rows, :, self.places] = new


class BlockStepper(Stepper, Protocol):
    """A stepper whose rows go on at positions of their own, by one token or by several."""

    def block(self, tokens: Tensor, block: Block) -> Tensor:
        """Feed tokens int64 [M] and get the logits [M, V] of what follows each.

        What lies in the caches at a position is written again when another token is fed there.
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
