"""Tiny models and prompts that the tests of the RL core share. Weights are larger than transformers' own random ones,
so that distributions are far from uniform and an error in any layer shows."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MT5Config, MT5ForConditionalGeneration

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.policy import CausalPolicy, Policy, Seq2SeqPolicy
from finegrained_rlhf.models.tiny import TinyGPT2Config, TinyLlamaConfig, TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_gpt2, build_llama, build_t5, build_tokenizer, causal_tokenizer
from finegrained_rlhf.rollout.select import CONTINUOUS_SINCE, has_continuous

CORPUS = ["the cat sat on a mat, and one dog ran far away; who saw it? red blue green!"]
SEQ2SEQ = ("t5", "t5-v1.1", "mt5")
CAUSAL = ("gpt2", "llama")
ARCHITECTURES = (*SEQ2SEQ, "gpt2")
needs_continuous = pytest.mark.skipif(
    not has_continuous(), reason=f"engine=continuous needs transformers {CONTINUOUS_SINCE} or newer"
)


def written_out(model: Any) -> Any:
    """A model of transformers whose attention is written out: SDPA drops a soft cap, or a mask, in older versions."""
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
    return model


@cache
def tokenizer(kind: str = "t5") -> Any:
    """The tokenizer of an architecture."""
    plain = build_tokenizer(CORPUS)
    return causal_tokenizer(plain, 64) if kind in CAUSAL else plain


def sharpen(model: Any, seed: int) -> Any:
    """Add N(0, 0.3) to every matrix."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def model(kind: str = "t5", seed: int = 0, width: int = 16) -> Any:
    """A sharpened tiny model: `t5` (tied head), `t5-v1.1` (gated, untied), `mt5`, `gpt2` or `llama` (untied).

    Other encoder–decoders by their family (`seq2seq_toy`).
    """
    if kind not in (*SEQ2SEQ, *CAUSAL):
        from seq2seq_toy import seq2seq_model

        return seq2seq_model(kind, seed=seed)
    if kind == "llama":
        sizes = TinyLlamaConfig(width, 24, num_heads=2, num_key_value_heads=1, max_length=64, tied=False)
        return sharpen(build_llama(tokenizer(kind), sizes, seed), seed)
    if kind == "gpt2":
        return sharpen(build_gpt2(tokenizer(kind), TinyGPT2Config(width, 2, 2, 64), seed), seed)
    if kind == "mt5":
        torch.manual_seed(seed)
        config = MT5Config(
            vocab_size=len(tokenizer()),
            d_model=width,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )
        return sharpen(MT5ForConditionalGeneration(config), seed)
    gated = kind == "t5-v1.1"
    return sharpen(build_t5(tokenizer(), TinyT5Config(width, 32, 2, 2, gated=gated, tied=not gated), seed), seed)


def policy(kind: str = "t5", seed: int = 0, width: int = 16) -> Policy:
    """A policy around `model`."""
    build = CausalPolicy if kind in CAUSAL else Seq2SeqPolicy
    return build(model(kind, seed, width), tokenizer(kind)).eval()


def prompts(kind: str = "t5", count: int = 3) -> list[Prompt]:
    """Prompts of different lengths."""
    texts = [
        "the cat sat on a mat, and one dog ran",
        "red",
        "who saw it? blue green",
        "one dog",
        "a mat, far away; the",
    ]
    return [Prompt(f"p{i}", text, tuple(tokenizer(kind)(text)["input_ids"])) for i, text in enumerate(texts[:count])]


def responses(kind: str = "t5", rows: int = 6, width: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random ids [rows, width] with ragged masks; padding holds random ids too."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, len(tokenizer(kind)), (rows, width), generator=generator)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    lengths[0] = width
    return ids, (torch.arange(width) < lengths).long()
