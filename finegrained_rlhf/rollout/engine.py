"""Rollout engines: encode prompts, then decode the encoding in one or several ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Decoding, Prompt, Rollout
from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.rollout.assembly import assemble, empty_rollout, join_rollouts, mask_after_eos, row_order
from finegrained_rlhf.runtime.processes import Processes


class RolloutEngine(Protocol):
    """Draws responses from a policy."""

    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """Encode each prompt once; several decodings may share the result."""

    def decode(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Rollout:
        """Draw responses. Rows of one prompt are contiguous, in the order of `decodings`.

        Args:
            memory: encoded prompts.
            decodings: for example `[Greedy(), Sample(5, top_k=20)]`.
            max_new_tokens: longest response, end of sequence included.
            seed: of the run.
            step: tells draws of one prompt apart. Noise is a function of (seed, step, `Prompt.draw`, sample, position).
        """


class PolicyEngine(ABC):
    """What the engines over a policy of ours do alike; see `RolloutEngine` for the contract.

    Args:
        policy: draws, encodes, and decodes ids to text.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """Encode each prompt once."""
        return self.policy.encode(prompts)

    @torch.no_grad()
    def decode(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Rollout:
        """See `RolloutEngine.decode`."""
        if not decodings:
            raise ValueError("need at least one decoding")
        ids, logprobs, support = self._draw(memory, decodings, max_new_tokens, seed, step)
        mask = mask_after_eos(ids, self.policy.eos_ids)
        width = max(int(mask.sum(dim=1).max()), 1) if mask.numel() else 1
        ids, mask = torch.where(mask.bool(), ids, self.policy.pad_id)[:, :width], mask[:, :width]
        if logprobs is None:
            prompt_index, _, _ = row_order(len(memory.prompts), decodings, ids.device)
            logprobs = self.policy.logprobs(memory, prompt_index, ids, mask).logprobs
        if support is not None:
            support = support[:, :width] * mask[:, :, None].to(support.dtype)
        rollout = assemble(memory, decodings, ids, mask, logprobs[:, :width] * mask, self.policy.tokenizer)
        return replace(rollout, support=support)

    @abstractmethod
    def _draw(
        self, memory: PromptMemory, decodings: Sequence[Decoding], limit: int, seed: int, step: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """int64 ids [R, limit] in `row_order`, whatever follows the end of sequence included; fp32 log-probabilities.

        The log-probabilities [R, limit] are None where the steps that drew the ids give none; the policy's own function
        is asked then. Last the support [R, limit, K] of the distribution that the policy scores, at each step, where
        it is truncated (`drawn_logprobs`).
        """


def rollout_in_batches(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    decodings: Sequence[Decoding],
    *,
    max_new_tokens: int,
    prompts_per_batch: int | None = None,
    seed: int = 0,
    step: int = 0,
) -> list[Rollout]:
    """Encode and decode `prompts` in batches of at most `prompts_per_batch`; one Rollout a batch, in order."""
    size = prompts_per_batch or max(len(prompts), 1)
    rollouts = []
    for start in range(0, len(prompts), size):
        memory = engine.encode(prompts[start : start + size])
        rollouts.append(engine.decode(memory, decodings, max_new_tokens=max_new_tokens, seed=seed, step=step))
    return rollouts


@dataclass(frozen=True)
class RolloutSampler:
    """Draws the responses of training steps: PPO, self-critical training and the doctor all sample by this.

    Attributes:
        engine: draws responses from the policy.
        pad_id: fills ids where batches of other lengths are joined.
        processes: of the run; gives precision and device.
        seed: of the run.
        max_new_tokens: longest response in tokens, end of sequence included.
        prompts_per_batch: prompts decoded at once on one process; None decodes all of them at once.
    """

    engine: RolloutEngine
    pad_id: int
    processes: Processes
    seed: int
    max_new_tokens: int
    prompts_per_batch: int | None = None

    def draw(self, prompts: Sequence[Prompt], decodings: Sequence[Decoding], step: int) -> Rollout:
        """The responses of one step; `begin`, and wait. Arguments and errors are those of `begin`."""
        return self.begin(prompts, decodings, step)()

    def begin(self, prompts: Sequence[Prompt], decodings: Sequence[Decoding], step: int) -> Callable[[], Rollout]:
        """Draw the responses of one step by the policy as it is now.

        An engine that draws elsewhere (`refresh`) gets the weights first, so every process must call this as often, or
        at least once since they have moved. It draws while the caller goes on; any other one draws at once.

        Args:
            prompts: this process's P prompts; may be none.
            decodings: as in `RolloutEngine.decode`; together N responses a prompt.
            step: tells draws of one prompt apart.

        Returns:
            A function that waits for one rollout of R = P·N responses [R, T], whatever batches they were decoded in.
        """
        elsewhere = getattr(self.engine, "refresh", None)
        if elsewhere is not None:
            elsewhere(self.processes)
        if not prompts:
            nothing = empty_rollout(decodings, self.processes.device)
            return lambda: nothing
        if hasattr(self.engine, "begin"):
            return self._begin(self.engine, prompts, decodings, step)
        with self.processes.autocast():
            batches = rollout_in_batches(
                self.engine,
                prompts,
                decodings,
                max_new_tokens=self.max_new_tokens,
                prompts_per_batch=self.prompts_per_batch,
                seed=self.seed,
                step=step,
            )
        drawn = join_rollouts(batches, self.pad_id)
        return lambda: drawn

    def _begin(
        self, engine: Any, prompts: Sequence[Prompt], decodings: Sequence[Decoding], step: int
    ) -> Callable[[], Rollout]:
        size, settings = self.prompts_per_batch or len(prompts), {"max_new_tokens": self.max_new_tokens}
        memories = [engine.encode(prompts[start : start + size]) for start in range(0, len(prompts), size)]
        begun = [engine.begin(memory, decodings, seed=self.seed, step=step, **settings) for memory in memories]
        return lambda: join_rollouts([wait() for wait in begun], self.pad_id)
