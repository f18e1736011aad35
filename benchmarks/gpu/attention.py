"""Which kernel `scaled_dot_product_attention` takes where, what cuDNN's plans cost, and whether gradients are numbers.

Knows the shapes of attention in this project, and torch's kernels. Knows no model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from benchmarks.equality import entry
from benchmarks.gpu.items import Item, Result, Setting
from benchmarks.machine import cudnn_attention, wait

PLAN_SECONDS = 0.005
"""A first call that takes so much longer than the second one made a plan (or compiled a kernel)."""


@dataclass(frozen=True)
class Situation:
    """One attention of a training step.

    Attributes:
        name: of it.
        queries, keys: tokens.
        mask: `none`, `bias` (float, the same for all rows), `padded bias` (float, −inf at a row's padding), `seen`
            (bool, by key), `causal`. A bias gets a gradient where there is one.
        trains: whether a gradient is asked for.
        rows, heads, width: of the batch and of one head.
    """

    name: str
    queries: int
    keys: int
    mask: str
    trains: bool
    rows: int = 4
    heads: int = 8
    width: int = 64

    def tensors(self, device: torch.device, dtype: torch.dtype) -> tuple[list[Tensor], Tensor | None]:
        """Query, key and value, and the mask or bias."""
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        parts = [normal(self.rows, self.heads, tokens, self.width) for tokens in (self.queries, self.keys, self.keys)]
        for part in parts:
            part.requires_grad_(self.trains)
        if self.mask == "none":
            return parts, None
        lengths = torch.arange(self.rows, device=device)[:, None, None, None] * (self.keys // 8) + self.keys // 2
        seen = torch.arange(self.keys, device=device) < lengths
        if self.mask == "seen":
            return parts, seen
        if self.mask == "causal":
            later = torch.ones(self.queries, self.keys, dtype=torch.bool, device=device).triu(1)
            return parts, torch.zeros(later.shape, dtype=dtype, device=device).masked_fill(later, -torch.inf)
        bias = normal(1, self.heads, self.queries, self.keys).requires_grad_(self.trains)
        return parts, bias.masked_fill(~seen, -torch.inf) if self.mask == "padded bias" else bias


SITUATIONS = (
    Situation("T5 encoder, scoring", 1024, 1024, "padded bias", False),
    Situation("T5 encoder, update", 1024, 1024, "padded bias", True),
    Situation("T5 encoder, update, length 1021", 1021, 1021, "padded bias", True),
    Situation("T5 decoder, update", 200, 200, "bias", True),
    Situation("cross-attention, scoring", 800, 1024, "seen", False),
    Situation("cross-attention, update", 800, 1024, "seen", True),
    Situation("cross-attention, decoding", 4, 1024, "seen", False),
    Situation("decoding, own tokens", 1, 200, "bias", False),
    Situation("Longformer, a block of its band", 512, 1536, "seen", False),
    Situation("Longformer training", 512, 1536, "seen", True),
    Situation("packed responses, update", 1824, 1824, "causal", True),
)


def attention_items() -> list[Item]:
    """Kernels, plans, and the gradient."""
    return [
        Item("attention", "kernels", kernels, 90),
        Item("attention", "plans", plans, 90),
        Item("attention", "masked_gradient", masked_gradient, 90),
    ]


def chosen(situation: Situation, device: torch.device, dtype: torch.dtype) -> str:
    """The kernel that torch would take, by name."""
    (query, key, value), mask = situation.tensors(device, dtype)
    number = torch._fused_sdp_choice(query, key, value, attn_mask=mask, scale=1.0)
    return SDPBackend(number).name.removesuffix("_ATTENTION").lower()


def kernels(setting: Setting) -> Result:
    """The kernel of every situation in bf16 and fp32, with cuDNN allowed and not, and the milliseconds of a call."""
    rows = []
    for situation in SITUATIONS[:: 4 if setting.small else 1]:
        row: dict[str, Any] = {"situation": situation.name}
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            for allowed in (False, True):
                with cudnn_attention(allowed):
                    key = f"{name}, cuDNN {'on' if allowed else 'off'}"
                    row[key] = chosen(situation, setting.device, dtype)
                    row[f"{key}: ms"] = 1000 * seconds_of(situation, setting.device, dtype)
        rows.append(row)
    return {"rows": rows}


def call(situation: Situation, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One attention, with its backward pass where it trains; the gradient of the queries, or the output."""
    (query, key, value), mask = situation.tensors(device, dtype)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0 / situation.width**0.5)
    if situation.trains:
        out.sum().backward()
    return out if query.grad is None else query.grad


def timed(situation: Situation, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds of one call, its tensors included."""
    wait(device)
    start = time.perf_counter()
    call(situation, device, dtype)
    wait(device)
    return time.perf_counter() - start


def seconds_of(situation: Situation, device: torch.device, dtype: torch.dtype) -> float:
    """The fastest of five calls after one that is not counted."""
    return min([timed(situation, device, dtype) for _ in range(6)][1:])


def plans(setting: Setting) -> Result:
    """What new shapes cost: the first call of each length against the second, with cuDNN allowed and not."""
    found: dict[str, Any] = {}
    queries, lengths = (16, range(100, 104)) if setting.small else (800, range(1000, 1020))

    def situation(tokens: int, trains: bool) -> Situation:
        return Situation("", queries, tokens, "seen", trains)

    for allowed in (False, True):  # kernels are loaded when they are first used
        with cudnn_attention(allowed):
            for trains in (False, True):
                call(situation(lengths.start - 8, trains), setting.device, torch.bfloat16)
    for allowed in (False, True):
        with cudnn_attention(allowed):
            extra = []
            for length in lengths:
                # A length of its own for each side: what one has planned, the other must not find.
                tokens = length + (0 if allowed else 32)
                for trains in (False, True):
                    new = situation(tokens, trains)
                    first, second = (timed(new, setting.device, torch.bfloat16) for _ in range(2))
                    extra.append(first - second)
        found["cudnn_on" if allowed else "cudnn_off"] = {
            "shapes": len(extra),
            "plans": sum(more > PLAN_SECONDS for more in extra),
            "seconds": sum(more for more in extra if more > PLAN_SECONDS),
        }
    return found


def masked_gradient(setting: Setting) -> Result:
    """Entries of the queries' gradient that are no number, where 64 keys more than a multiple of 128 are masked and all
    scores of a row lie far below 0 (pytorch#196678); with cuDNN off none may be.
    """
    counts = {}
    for allowed in (False, True):
        with cudnn_attention(allowed):
            query, key, value = (
                torch.randn(2, 8, tokens, 64, device=setting.device, dtype=torch.bfloat16) for tokens in (128, 192, 192)
            )
            key, query = key.abs() * 4, -query.abs() * 4  # log-sum-exp of every row far below -88.7
            query.requires_grad_(True)
            seen = torch.ones(2, 1, 1, 192, dtype=torch.bool, device=setting.device)
            seen[..., 150:] = False
            F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=1.0).sum().backward()
            assert query.grad is not None
            counts["cudnn_on" if allowed else "cudnn_off"] = int((~query.grad.isfinite()).sum())
    return {"not_finite": counts, "equal": {"finite_without_cudnn": entry(counts["cudnn_off"], 0)}}
