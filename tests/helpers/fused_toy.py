"""A small T5, its decoder states and gradients, for models that compute them in other ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from finegrained_rlhf.models.families import t5


def model(gated: bool = False) -> Any:
    """A T5 of two layers with weights as large as a trained one's."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=48,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu" if gated else "relu",
    )
    return T5ForConditionalGeneration(config).eval()


def states(of: Any, in_bf16: bool) -> Tensor:
    """Decoder states of two prompts with two responses each."""
    random = torch.Generator().manual_seed(1)
    ids, inputs = (torch.randint(48, shape, generator=random) for shape in ((2, 9), (4, 5)))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        encoded = t5.t5_encode(of, ids, mask)
        return t5.t5_decoder_states(of, encoded, mask, torch.tensor([0, 0, 1, 1]), inputs)


def gradients(of: Any, in_bf16: bool) -> Tensor:
    """Of all parameters that get one, flat."""
    of.zero_grad()
    found = states(of, in_bf16).float()
    (found * torch.linspace(-1, 1, found.numel()).view(found.shape)).sum().backward()
    return torch.cat([p.grad.flatten() for _, p in sorted(of.named_parameters()) if p.grad is not None])


def away(one: Tensor, other: Tensor) -> float:
    """Norm of the difference, relative to the other's."""
    return float((one - other).norm() / other.norm())
