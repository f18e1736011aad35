"""Tiny random models of every decoder-only family: the table of `benchmarks/gpu/families.py` at its smallest.

Values matter: soft caps and scales are strong enough to move log-probabilities by whole nats, windows shorter than the
prompts, query heads grouped, head widths other than width / heads where a family names them. Weights are random,
sharpened as in `rl_toy`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from rl_toy import prompts, responses, sharpen, tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu.families import SETTINGS, Size
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.policy import CausalPolicy

FAMILIES = tuple(CAUSAL_FAMILIES)
WINDOW = 5
TINY = Size(width=16, head=8, window=WINDOW, positions=64, cap=1.5, attention_cap=2.0)


def family_config(family: str, tied: bool | None = None, **changes: Any) -> Any:
    """A tiny configuration; `tied` says whether head and embeddings are one, by default as the family has it."""
    settings = {**SETTINGS[family](TINY), "vocab_size": len(tokenizer("gpt2")), "bos_token_id": 1, "eos_token_id": 1}
    if family == "qwen3_moe":  # here with windows; tests that decode it take them away
        settings = {**SETTINGS["qwen2"](TINY), **settings}
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
