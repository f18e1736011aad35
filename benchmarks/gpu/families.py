"""Small random models of every family, with what sets each apart switched on. Knows transformers' configurations.

One table for all sizes: the benchmark's models have heads 32 wide, so that every fused kernel takes them; the tests'
(`tests/helpers/families_toy.py`) are as small as can be. In both, windows are shorter than prompts and query heads are
grouped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.seq2seq import SEQ2SEQ_FAMILIES

Settings = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How large the models are; they have 2 layers, and rotary families 4 heads of queries and 2 of keys and values.

    Attributes:
        width: hidden size D; feed-forward layers are 3D/2 wide.
        head: width of a head where a family's configuration names it; where it does not, rotary heads are D/4 wide.
        window: tokens that a sliding window reaches.
        positions: rows of a table of positions.
        cap: soft cap of the logits.
        attention_cap: soft cap of the attention scores.
    """

    width: int = 128
    head: int = 32
    window: int = 24
    positions: int = 256
    cap: float = 8.0
    attention_cap: float = 8.0


FUSED = Size()
"""For every fused kernel on a GPU."""


def _rotary(size: Size) -> Settings:
    inner = 3 * size.width // 2
    return {
        "hidden_size": size.width,
        "intermediate_size": inner,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }


def _grouped(size: Size) -> Settings:
    return {**_rotary(size), "num_key_value_heads": 2}


def _wide(size: Size) -> Settings:
    return {**_grouped(size), "head_dim": size.head}


def _both(size: Size) -> Settings:
    """A layer with a sliding window, then one without."""
    return {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": size.window}


def _qwen(size: Size) -> Settings:
    return {**_grouped(size), **_both(size), "use_sliding_window": True}


def _gemma3(size: Size) -> Settings:
    scale = {"query_pre_attn_scalar": size.head, "final_logit_softcapping": size.cap}
    return {**_wide(size), **_both(size), **scale}


def _gemma2(size: Size) -> Settings:
    return {**_gemma3(size), "attn_logit_softcapping": size.attention_cap}


def _cohere(size: Size) -> Settings:
    return {**_grouped(size), "logit_scale": 0.25, "use_qk_norm": True}


def _cohere2(size: Size) -> Settings:
    return {**_grouped(size), **_both(size), "logit_scale": 0.25, "head_dim": size.width // 4}


def _gpt2(size: Size) -> Settings:
    return {"n_embd": size.width, "n_layer": 2, "n_head": size.width // size.head, "n_positions": size.positions}


def _gpt_neo(size: Size) -> Settings:
    return {
        "hidden_size": size.width,
        "num_layers": 2,
        "num_heads": size.width // size.head,
        "attention_types": [[["global", "local"], 1]],
        "window_size": size.window,
        "max_position_embeddings": size.positions,
    }


def _granite(size: Size) -> Settings:
    scales = {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "attention_multiplier": 0.3}
    return {**_grouped(size), **scales, "residual_multiplier": 0.7}


def _qwen3_moe(size: Size) -> Settings:
    """Without windows, by which transformers' generate, its only engine, does not decode it."""
    return {
        **_wide(size),
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": size.width // 2,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    }


def _t5(size: Size) -> Settings:
    inner, heads = 3 * size.width // 2, size.width // size.head
    widths = {"d_model": size.width, "d_kv": size.head, "d_ff": inner}
    return {**widths, "num_layers": 2, "num_decoder_layers": 2, "num_heads": heads}


def _bart(size: Size) -> Settings:
    inner, heads = 3 * size.width // 2, size.width // size.head
    return {
        "d_model": size.width,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": inner,
        "max_position_embeddings": size.positions,
        "decoder_start_token_id": 0,
    }


SETTINGS: dict[str, Callable[[Size], Settings]] = {
    "bart": _bart,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "gemma": _wide,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neo": _gpt_neo,
    "gpt_neox": lambda size: {**_rotary(size), "rotary_pct": 0.5, "max_position_embeddings": size.positions},
    "granite": _granite,
    "llama": _wide,
    "longt5": lambda size: {**_t5(size), "local_radius": 15},
    "mbart": _bart,
    "mistral": lambda size: {**_grouped(size), "sliding_window": size.window},
    "mt5": lambda size: {**_t5(size), "feed_forward_proj": "gated-gelu"},
    "olmo2": _grouped,
    "olmo3": lambda size: {**_grouped(size), **_both(size)},
    "pegasus": _bart,
    "phi3": lambda size: {**_grouped(size), "sliding_window": size.window, "partial_rotary_factor": 0.5},
    "qwen2": _qwen,
    "qwen3": lambda size: {**_qwen(size), "head_dim": size.head},
    "qwen3_moe": _qwen3_moe,
    "smollm3": lambda size: {**_qwen(size), "no_rope_layers": [1, 0]},
    "t5": _t5,
    "t5gemma": _gemma2,
    "t5gemma2": _gemma3,
    "umt5": _t5,
}
"""By transformers' `model_type`, the settings of a model of a size."""


def with_images(text: Settings, width: int = 32) -> Settings:
    """Settings of T5Gemma 2's encoder around those of its text, with an encoder of images that no text passes."""
    looks: Settings = {"hidden_size": width, "intermediate_size": width, "image_size": 28, "patch_size": 14}
    looks |= {"num_hidden_layers": 1, "num_attention_heads": 2, "model_type": "siglip_vision_model"}
    return {"text_config": text, "vision_config": looks, "mm_tokens_per_image": 4}


def family_config(family: str, vocabulary: int, pad: int, eos: int) -> Any:
    """Configuration of a small model over `vocabulary` ids, without dropout."""
    ids = {"vocab_size": vocabulary, "pad_token_id": pad, "eos_token_id": eos, "bos_token_id": eos}
    settings = SETTINGS[family](FUSED)
    if family in ("t5gemma", "t5gemma2"):
        part = {**settings, **ids}
        encoder = with_images(part) if family == "t5gemma2" else part
        return AutoConfig.for_model(family, encoder=encoder, decoder=part, **ids, dropout_rate=0.0)
    if family in SEQ2SEQ_FAMILIES and "d_kv" in settings:
        return AutoConfig.for_model(family, **settings, **ids, decoder_start_token_id=pad, dropout_rate=0.0)
    return AutoConfig.for_model(family, **settings, **ids)


@torch.no_grad()
def family_model(family: str, vocabulary: int, pad: int, eos: int) -> Any:
    """A small random model on the CPU.

    Matrices are three times as large as transformers makes them, for varied words; not T5's, whose scores are unscaled.
    """
    torch.manual_seed(0)
    config = family_config(family, vocabulary, pad, eos)
    kind = AutoModelForCausalLM if family in CAUSAL_FAMILIES else AutoModelForSeq2SeqLM
    model = kind.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim >= 2 and not hasattr(config, "d_kv"):
            parameter.mul_(3.0)
    return model.eval()
