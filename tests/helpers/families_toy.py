"""Tiny random models of every decoder-only family, with what sets it apart switched on at values that matter.

Soft caps and scales are strong enough to move log-probabilities by whole nats, windows shorter than the prompts, query
heads grouped, head widths other than width / heads. Weights are random, sharpened as in `rl_toy`.
"""

from __future__ import annotations

from typing import Any

import torch
from rl_toy import prompts, responses, sharpen, tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.policy import CausalPolicy

FAMILIES = tuple(CAUSAL_FAMILIES)
WINDOW = 5
_ROTARY = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPED = {**_ROTARY, "num_key_value_heads": 2}
_BOTH_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_QWEN = {**_GROUPED, **_BOTH_KINDS, "use_sliding_window": True}
_GPT = {"max_position_embeddings": 64}
_SETTINGS: dict[str, dict[str, Any]] = {
    "cohere": {**_GROUPED, "logit_scale": 0.25, "use_qk_norm": True},
    "cohere2": {**_GROUPED, **_BOTH_KINDS, "logit_scale": 0.25, "head_dim": 4},
    "gemma": {**_GROUPED, "head_dim": 8},
    "gemma2": {
        **_GROUPED,
        **_BOTH_KINDS,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 1.5,
    },
    "gemma3_text": {
        **_GROUPED,
        **_BOTH_KINDS,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "final_logit_softcapping": 1.5,
    },
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "gpt_neo": {
        **_GPT,
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
    },
    "gpt_neox": {**_GPT, **_ROTARY, "rotary_pct": 0.5},
    "granite": {
        **_GROUPED,
        "logits_scaling": 3.0,
        "embedding_multiplier": 2.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.7,
    },
    "llama": {**_GROUPED, "head_dim": 8},
    "mistral": {**_GROUPED, "sliding_window": WINDOW},
    "olmo2": _GROUPED,
    "olmo3": {**_GROUPED, **_BOTH_KINDS},
    "phi3": {**_GROUPED, "sliding_window": WINDOW, "partial_rotary_factor": 0.5},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 8},
    "qwen3_moe": {
        **_QWEN,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    "smollm3": {**_QWEN, "no_rope_layers": [1, 0]},
}


def family_config(family: str, tied: bool | None = None, **changes: Any) -> Any:
    """A tiny configuration; `tied` says whether head and embeddings are one, by default as the family has it."""
    settings = {**_SETTINGS[family], "vocab_size": len(tokenizer("gpt2")), "bos_token_id": 1, "eos_token_id": 1}
    if tied is not None:
        settings["tie_word_embeddings"] = tied
    return AutoConfig.for_model(family, **{**settings, "pad_token_id": 0, **changes})


def family_model(family: str, tied: bool | None = None, seed: int = 0, **changes: Any) -> Any:
    """A sharpened tiny model of a family."""
    torch.manual_seed(seed)
    return sharpen(AutoModelForCausalLM.from_config(family_config(family, tied, **changes)), seed)


def family_policy(family: str, tied: bool | None = None, seed: int = 0, **changes: Any) -> CausalPolicy:
    """A policy around `family_model`."""
    return CausalPolicy(family_model(family, tied, seed, **changes), tokenizer("gpt2")).eval()


def batch(samples: int = 3, count: int = 3, width: int = 7) -> tuple[list[Prompt], Tensor, Tensor, Tensor]:
    """Ragged prompts, the prompt of each row [R], and ragged responses with their mask [R, T]."""
    ids, mask = responses("gpt2", count * samples, width)
    return prompts("gpt2", count), torch.arange(count).repeat_interleave(samples), ids, mask


def transformers_rows(model: Any, asked: list[Prompt], rows: Tensor, ids: Tensor) -> Tensor:
    """Logits [R, T, V] of each response token by the whole model, one unpadded row at a time."""
    found = []
    for prompt, row in zip([asked[i] for i in rows], ids, strict=True):
        whole = torch.tensor([[*prompt.input_ids, *row.tolist()]])
        found.append(model(input_ids=whole).logits[0, len(prompt.input_ids) - 1 : -1])
    return torch.stack(found)
