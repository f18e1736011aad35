"""A T5 decoder's weights as it is decoded with: adapters added in, in the dtype of the forward pass.

Query, key and value of the self-attention lie as one matrix, and the two inner projections of a gated feed-forward part
too. Where a layer needs no change its memory is shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout.steppers.snapshot import (
    WeightsOfNow,
    compute_dtype,
    effective_weight,
    is_plain,
    must_copy,
)


@dataclass(frozen=True)
class BlockWeights:
    """Weights of one decoder block.

    Attributes:
        block: the module, for its norms and its activation.
        qkv: [3·H·d, D], self-attention.
        out: [D, H·d].
        cross_query, cross_key, cross_value: [H·d, D].
        cross_out: [D, H·d].
        inner: [F, D], or [2·F, D] where the feed-forward part is gated (gate first).
        outer: [D, F].
    """

    block: Any
    qkv: Tensor
    out: Tensor
    cross_query: Tensor
    cross_key: Tensor
    cross_value: Tensor
    cross_out: Tensor
    inner: Tensor
    outer: Tensor


class T5Weights:
    """The weights of all blocks and of the head, read from a policy now.

    Args:
        policy: whose decoder's linear layers are plain (see `is_plain`).

    Attributes:
        blocks: in order.
        head: [V, D]; None where the head is more than a linear layer.
    """

    @torch.no_grad()
    def __init__(self, policy: Policy) -> None:
        self._copies: list[tuple[tuple[Any, ...], Tensor]] = []
        self.blocks = [self._block(block) for block in policy.model.decoder.block]
        lm_head = policy.model.lm_head
        self.head = self._weight(lm_head) if is_plain(lm_head) else None

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the policy's weights again, into the same tensors; those that are shared follow by themselves."""
        for modules, tensor in self._copies:
            start = 0
            for module in modules:
                weight = effective_weight(module)
                tensor[start : start + weight.shape[0]].copy_(weight)
                start += weight.shape[0]

    def _block(self, block: Any) -> BlockWeights:
        own, cross, dense = block.layer[0].SelfAttention, block.layer[1].EncDecAttention, block.layer[-1].DenseReluDense
        return BlockWeights(
            block=block,
            qkv=self._weight(own.q, own.k, own.v),
            out=self._weight(own.o),
            cross_query=self._weight(cross.q),
            cross_key=self._weight(cross.k),
            cross_value=self._weight(cross.v),
            cross_out=self._weight(cross.o),
            inner=self._weight(*(getattr(dense, name) for name in inner_names(dense))),
            outer=self._weight(dense.wo),
        )

    def _weight(self, *modules: Any) -> Tensor:
        """Weights below each other in the dtype that they compute in; a copy, or the one module's own memory."""
        weights = [effective_weight(module).detach() for module in modules]
        dtype = compute_dtype(weights[0])
        plain = len(modules) == 1 and not hasattr(modules[0], "base_layer")
        if plain and weights[0].dtype == dtype and not must_copy(modules[0]):
            return weights[0]
        made = torch.cat([weight.to(dtype) for weight in weights])
        self._copies.append((modules, made))
        return made


def inner_names(dense: Any) -> tuple[str, ...]:
    """The inner projections of a feed-forward part, gate first."""
    return ("wi_0", "wi_1") if hasattr(dense, "wi_0") else ("wi",)


t5_weights = WeightsOfNow(T5Weights)
