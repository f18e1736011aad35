"""Small random models of every family, with what sets each apart switched on. Knows transformers' configurations.

Heads are 32 wide, so that every fused kernel takes them; windows are shorter than prompts, query heads grouped.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.seq2seq import SEQ2SEQ_FAMILIES

WINDOW = 24
_ROTARY = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPED = {**_ROTARY, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 32}
_BOTH = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_QWEN = {**_GROUPED, **_BOTH, "use_sliding_window": True}
_GEMMA = {**_WIDE, **_BOTH, "query_pre_attn_scalar": 32, "final_logit_softcapping": 8.0}
_SPARSE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 192, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
_BART = {
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 192,
    "decoder_ffn_dim": 192,
    "max_position_embeddings": 256,
    "decoder_start_token_id": 0,
}
_LOOKS = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "bart": _BART,
    "cohere": {**_GROUPED, "logit_scale": 0.25, "use_qk_norm": True},
    "cohere2": {**_WIDE, **_BOTH, "logit_scale": 0.25},
    "gemma": _WIDE,
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 8.0},
    "gemma3_text": _GEMMA,
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neo": {
        "hidden_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "max_position_embeddings": 256,
    },
    "gpt_neox": {**_ROTARY, "rotary_pct": 0.5, "max_position_embeddings": 256},
    "granite": {**_GROUPED, "logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.7},
    "llama": _WIDE,
    "longt5": {**_T5, "local_radius": 15},
    "mbart": _BART,
    "mistral": {**_GROUPED, "sliding_window": WINDOW},
    "mt5": {**_T5, "feed_forward_proj": "gated-gelu"},
    "olmo2": _GROUPED,
    "olmo3": {**_GROUPED, **_BOTH},
    "pegasus": _BART,
    "phi3": {**_GROUPED, "sliding_window": WINDOW, "partial_rotary_factor": 0.5},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 32},
    "qwen3_moe": {**_WIDE, **_SPARSE},
    "smollm3": {**_QWEN, "no_rope_layers": [1, 0]},
    "t5": _T5,
    "t5gemma": {**_GEMMA, "attn_logit_softcapping": 8.0},
    "t5gemma2": _GEMMA,
    "umt5": _T5,
}
"""By transformers' `model_type`."""


def family_config(family: str, vocabulary: int, pad: int, eos: int) -> Any:
    """Configuration of a small model over `vocabulary` ids, without dropout."""
    ids = {"vocab_size": vocabulary, "pad_token_id": pad, "eos_token_id": eos, "bos_token_id": eos}
    settings = SETTINGS[family]
    if family == "t5gemma":
        part = {**settings, **ids}
        return AutoConfig.for_model(family, encoder=part, decoder=part, **ids, dropout_rate=0.0)
    if family == "t5gemma2":
        part = {**settings, **ids}
        looks = {**_LOOKS, "image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
        encoder = {"text_config": part, "vision_config": looks, "mm_tokens_per_image": 4}
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
