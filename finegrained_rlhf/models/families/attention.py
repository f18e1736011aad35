"""Which attention function a model runs: one that computes scores as they are defined, on CUDA FlexAttention."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

logger = logging.getLogger(__name__)

FLEX_OR_SDPA = "flex_or_sdpa"
FLEX_BLOCK = 128
"""Columns of a block of FlexAttention's masks; rows are padded to a multiple of it."""
_WARPS: Any = {"fwd_num_warps": 8}
"""For heads of up to 64: on an H100 torch 2.11 runs the forward kernel of such heads with four warps, which took
1.01 ms a call where eight take 0.19 (bf16, 9 heads, 4 rows of 1,920 columns under our masks)."""
RECOMPILE_LIMIT = 64
"""Graphs that torch may compile of one function before it gives up and runs it unfused; its own default is 8."""


def exact_attention(model: nn.Module) -> None:
    """Let a model's attention compute what its family defines where a version of transformers does something else.

    - SDPA has no soft cap, and transformers before 5.21 takes it for Gemma 2 and T5Gemma all the same: scores with a
      cap are written out ("eager"), as later versions do by themselves.
    - Before 5.18 the decoder of UMT5 looks ahead under SDPA where no mask is given: its attention is said to be causal.
    """
    part: Any
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is None:
            continue
        if getattr(config, "attn_logit_softcapping", None) is not None and config._attn_implementation == "sdpa":
            config._attn_implementation = "eager"
        if config.model_type == "umt5" and hasattr(part, "block") and config.is_decoder:
            for block in part.block:
                block.layer[0].SelfAttention.is_causal = True


def takes_flex(backbone: Any, config: Any, device: str) -> bool:
    """Whether FlexAttention skips what nobody sees, on this type of device."""
    ours = config._attn_implementation == FLEX_OR_SDPA
    return device == "cuda" and (ours or (config._attn_implementation == "sdpa" and backbone._supports_flex_attn))


def prefer_flex(backbone: Any, device: torch.device) -> None:
    """On CUDA let a backbone of ordinary attention take FlexAttention's masks too; the only place where it is chosen.

    The choice stays: gradient checkpointing runs layers again in the backward pass. Attention that is given any other
    mask is SDPA as before. GPT-2 and GPT-Neo have no FlexAttention in transformers, models with a soft cap no SDPA to
    go back to; they keep their own attention, under the whole mask.
    """
    if takes_flex(backbone, backbone.config, device.type):
        backbone.config._attn_implementation = FLEX_OR_SDPA


def flex_or_sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """FlexAttention under a `BlockMask`, SDPA under any other mask, as transformers' attention function.

    Args:
        module: the attention layer.
        query: float [B, H, Q, d].
        key: float [B, K/V heads, K, d].
        value: float [B, K/V heads, K, d].
        attention_mask: of either kind.
        options: passed on to SDPA; FlexAttention takes `scaling`.

    Returns:
        float [B, Q, H, d], and no weights.
    """
    assert options.get("softcap") is None, "neither has a soft cap: exact_attention comes before prefer_flex"
    if not isinstance(attention_mask, BlockMask):
        result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    return _flex(query, key, value, attention_mask, options.get("scaling")), None


@torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    """FlexAttention by a compiled function of its own, also from within a compiled block."""
    device = query.device.type
    if torch.is_autocast_enabled(device):  # SDPA casts by itself; rotary embeddings leave queries and keys in fp32
        query, key, value = (part.to(torch.get_autocast_dtype(device)) for part in (query, key, value))
    heads, groups = query.shape[1], query.shape[1] // key.shape[1]
    if heads & (heads - 1):  # kernels share a key head among a power of two of query heads
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    for part in (query, key, value):  # constants of the kernel; batch and length are its arguments
        torch._dynamo.mark_static(part, 1)
        torch._dynamo.mark_static(part, 3)
    attend = _compiled(heads, key.shape[1], query.shape[3], value.shape[3], query.dtype, torch.is_grad_enabled())
    return attend(query, key, value, mask, scale).transpose(1, 2).contiguous()


@cache
def _compiled(*shape: Any) -> Callable[..., Tensor]:
    """FlexAttention compiled for heads, widths, dtype and gradient mode: what a kernel has as constants.

    torch counts compilations, and looks for the one that fits, by code object: models of other shapes, and passes with
    gradients and without, must not use up each other's limit. So every combination gets a code object of its own.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    return torch.compile(FunctionType(_attend.__code__.replace(), globals()), dynamic=True)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    if not torch.compiler.is_compiling():
        _say_unfused()
    options = _WARPS if query.shape[3] <= 64 else None
    attended: Tensor = flex_attention(
        query, key, value, block_mask=mask, scale=scale, enable_gqa=True, kernel_options=options
    )
    return attended


@cache
def _say_unfused() -> None:
    logger.warning(
        "FlexAttention is not compiled any more (torch's limit of recompilations was hit, or compiling is switched "
        "off): attention is computed in full from now on, slowly and in much more memory. Results stay the same. "
        "TORCH_LOGS=recompiles says what was compiled again and why"
    )


AttentionInterface.register(FLEX_OR_SDPA, flex_or_sdpa)
AttentionMaskInterface.register(FLEX_OR_SDPA, sdpa_mask)
