"""Families of the PPO benchmark beside T5: their shapes by profile, and random models of a shape.

Knows numbers and transformers' configurations; no measurement. T5's own sizes are in `profiles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PretrainedConfig


@dataclass(frozen=True)
class T5Shape:
    """An encoder–decoder with a tied head, a T5 or a T5Gemma; attention is as wide as the model.

    Attributes:
        width: d_model.
        inner: d_ff.
        layers: encoder layers, and as many decoder layers.
        heads: attention heads.
        gated: whether the feed-forward layers have three matrices (T5Gemma) instead of two.
        activation: of the feed-forward layers of a T5.
    """

    width: int
    inner: int
    layers: int
    heads: int
    gated: bool = False
    activation: str = "relu"


@dataclass(frozen=True)
class CausalShape:
    """A decoder-only model with a tied head.

    Attributes:
        family: transformers' `model_type`.
        width: hidden size.
        inner: width of the feed-forward layers.
        layers: layers.
        heads: query heads.
        key_heads: heads of keys and values.
        head_width: width of one head.
    """

    family: str
    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_width: int

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layers have three matrices instead of two."""
        return self.family != "gpt2"


def _same(policy: CausalShape | T5Shape, note: str, vocabulary: int, **sizes: int) -> dict[str, Any]:
    """What a profile has of a family: value model and policy alike."""
    return {"policy": policy, "value": policy, "note": note, "vocabulary": vocabulary, **sizes}


_CPU = {"prompt_tokens": 300, "new_tokens": 48}
_TINY_NOTE = "2 layers of width 32"
FAMILIES: dict[str, dict[str, dict[str, Any]]] = {
    "gpt2": {
        "tiny": _same(CausalShape("gpt2", 32, 64, 2, 2, 2, 16), _TINY_NOTE, 512),
        "cpu": _same(
            CausalShape("gpt2", 768, 3072, 6, 12, 12, 64),
            "GPT-2 small's widths and vocabulary, 6 of its 12 layers",
            50257,
            **_CPU,
        ),
        "gpu": _same(
            CausalShape("gpt2", 1280, 5120, 36, 20, 20, 64),
            "GPT-2 large's shape, 1,536 positions instead of 1,024",
            50257,
        ),
    },
    "llama": {
        "tiny": _same(CausalShape("llama", 32, 64, 2, 4, 2, 8), _TINY_NOTE, 512),
        "cpu": _same(
            CausalShape("llama", 576, 1536, 8, 9, 3, 64),
            "SmolLM2-135M's widths and vocabulary, 8 of its 30 layers",
            49152,
            **_CPU,
        ),
        "gpu": _same(CausalShape("llama", 2048, 8192, 16, 32, 8, 64), "Llama 3.2 1B's shape", 128256),
    },
    "qwen3": {
        "tiny": _same(CausalShape("qwen3", 32, 64, 2, 4, 2, 16), _TINY_NOTE, 512),
        "cpu": _same(
            CausalShape("qwen3", 1024, 3072, 4, 16, 8, 128),
            "Qwen3-0.6B's widths, 4 of its 28 layers, 32,768 of its 151,936 words",
            32768,
            **_CPU,
        ),
        "gpu": _same(CausalShape("qwen3", 1024, 3072, 28, 16, 8, 128), "Qwen3-0.6B's shape", 151936),
    },
    "t5gemma": {
        "tiny": _same(T5Shape(32, 64, 2, 2, gated=True), _TINY_NOTE, 512),
        "cpu": _same(
            T5Shape(512, 1024, 8, 8, gated=True),
            "T5Gemma with 8 + 8 layers of width 512, 32,128 of its 256,000 words",
            32128,
        ),
        "gpu": _same(T5Shape(1024, 2816, 24, 16, gated=True), "T5Gemma with 24 + 24 layers of width 1,024", 256000),
    },
}
"""What the profiles of `profiles.py` become in other families than T5."""
CAUSAL = tuple(name for name, profiles in FAMILIES.items() if isinstance(profiles["cpu"]["policy"], CausalShape))
"""The decoder-only ones."""


def causal_config(shape: CausalShape, vocabulary: int, positions: int, **ids: int) -> PretrainedConfig:
    """Configuration of a model of this shape, tied, without dropout; `ids` are those of its special tokens."""
    common = {"vocab_size": vocabulary, "tie_word_embeddings": True, "use_cache": True, **ids}
    if shape.family == "gpt2":
        return AutoConfig.for_model(
            "gpt2",
            n_embd=shape.width,
            n_inner=shape.inner,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_positions=positions,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
    return AutoConfig.for_model(
        shape.family,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_width,
        max_position_embeddings=positions,
        **common,
    )


@torch.no_grad()
def build_causal(config: PretrainedConfig, device: torch.device, specials: int) -> Any:
    """A random model with a tied head that writes as a trained one does, as `workload.build_policy` does for T5.

    Embeddings of standard deviation 1 are as large as what all layers add; the last norm has random signs and gives
    the logits a standard deviation of about 1. The first `specials` ids get embeddings of nearly 0.
    """
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)
        signs = torch.randint(0, 2, (config.hidden_size,)) * 2.0 - 1.0
        embeddings = model.get_input_embeddings().weight
        embeddings.normal_()
    embeddings[:specials].mul_(0.01)
    backbone = model.base_model
    norm = backbone.ln_f if hasattr(backbone, "ln_f") else backbone.norm
    norm.weight.copy_(signs / config.hidden_size**0.5)
    return model.eval()


def build_backbone(config: PretrainedConfig, device: torch.device) -> Any:
    """A random backbone for a value model."""
    with torch.device(device):
        return AutoModel.from_config(config).eval()


def t5gemma_config(shape: T5Shape, vocabulary: int, start: int, **ids: int) -> PretrainedConfig:
    """Configuration of a T5Gemma of this shape, tied, without dropout, whose decoder begins with the id `start`."""
    part = {
        "vocab_size": vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.width // shape.heads,
        "query_pre_attn_scalar": shape.width // shape.heads,
        **ids,
        "bos_token_id": start,
    }
    return AutoConfig.for_model(
        "t5gemma", encoder=part, decoder=part, vocab_size=vocabulary, tie_word_embeddings=True, dropout_rate=0.0
    )


@torch.no_grad()
def build_t5gemma(config: PretrainedConfig, device: torch.device, specials: int) -> Any:
    """A random T5Gemma that writes as a trained one does, as `build_causal`.

    Every sublayer adds a vector of root mean square 1, for it ends in a norm. The decoder multiplies its embeddings by
    the root of the width; they are made as large as what its three sublayers a layer add together.
    """
    with torch.device(device):
        model = AutoModelForSeq2SeqLM.from_config(config)
        width, scale = config.decoder.hidden_size, (3 * config.decoder.num_hidden_layers) ** 0.5
        signs = torch.randint(0, 2, (width,)) * 2.0 - 1.0
        for stack in (model.get_encoder(), model.get_decoder()):
            embeddings = stack.get_input_embeddings().weight
            embeddings.normal_(std=scale / width**0.5)
            embeddings[:specials].mul_(0.01)
    model.get_decoder().norm.weight.copy_(signs / scale - 1.0)  # this norm multiplies by 1 + weight
    return model.eval()
