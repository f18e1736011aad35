"""The policy as a run began with it, to be compared with: its log-probabilities of given responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.families.heads import Head
from finegrained_rlhf.models.lora import ADAPTER, reference_adapter
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.frozen import frozen_copy
from finegrained_rlhf.models.weights.sharded import gather_tables, shard_layers
from finegrained_rlhf.runtime.processes import Processes


class ReferencePolicy:
    """A frozen copy of a policy; where LoRA is trained, the same weights with the adapter off, or the starting one on.

    It is what the policy was when this was made. It is never read from a checkpoint: a resumed run keeps its anchor.

    Args:
        policy: that will be trained; in evaluation mode.

    Attributes:
        own: the copy, which nothing trains; None where LoRA is trained.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.own: Policy | None = frozen_copy(policy) if policy.adapter is None else None

    @property
    def model(self) -> nn.Module:
        """The model whose weights are read."""
        return (self._policy if self.own is None else self.own).model

    def shard(self, processes: Processes) -> None:
        """Share out the weights of the copy, where there is one, among processes."""
        if self.own is not None:
            shard_layers(self.own.model, processes)

    def gather_head(self) -> None:
        """Gather its head, where it is in shards, until an optimizer has moved the policy; all processes together."""
        if self.own is not None:
            gather_tables(self.own.model)

    @torch.no_grad()
    def logprobs(
        self, prompts: Sequence[Prompt], index: Tensor, ids: Tensor, mask: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities of responses.

        Args:
            prompts: P prompts.
            index: int64 [R], the prompt of each row.
            ids: int64 [R, T].
            mask: int64 [R, T], 1 = real token.
            places: see `Policy.logprobs`.

        Returns:
            fp32 [R, T], 0 at padding.
        """
        with self._reading() as policy:
            return policy.logprobs(policy.encode(prompts), index, ids, mask, places=places).logprobs

    @torch.no_grad()
    def states(self, prompts: Sequence[Prompt], index: Tensor, ids: Tensor) -> Tensor:
        """The states that predict each response token, float [R, T, D]; arguments as in `logprobs`."""
        with self._reading() as policy:
            return policy.hidden(policy.encode(prompts), index, ids)

    @contextmanager
    def _reading(self) -> Iterator[Policy]:
        """What is asked: the copy, or the policy with the adapter that the run began with."""
        if self.own is not None:
            yield self.own
            return
        with reference_adapter(self._policy.adapter):
            yield self._policy

    def head_of_pass(self) -> Head:
        """Its logits [n, V] of such states [n, D]; see `Policy.head_of_pass`. In shards it must be gathered first."""
        if self.own is not None:
            return self.own.head_of_pass()
        policy, head = self._policy, self._policy.head_of_pass()
        if not any(ADAPTER in f".{name}" for name, _ in policy.model.lm_head.named_parameters()):
            return head

        def without_training(hidden: Tensor) -> Tensor:
            with reference_adapter(policy.adapter):
                return head(hidden)

        return without_training
