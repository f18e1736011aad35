"""A tiny T5 whose attention begins with directions and with copying, so that it learns from little data.

Knows transformers' T5. Knows no task, no tokenizer and no training.
"""

from __future__ import annotations

import torch
from transformers import T5ForConditionalGeneration

LEFT, RIGHT, NEAR = range(3)
"""The encoder heads that begin with a direction; the others begin as T5's own."""
FAR_OFF = -5.0
"""Bias of the positions that a head with a direction begins without."""
REACH = 2
"""Words on each side that the near head begins with."""


@torch.no_grad()
def structure_t5(model: T5ForConditionalGeneration) -> None:
    """Set the weights so that the encoder tells places apart and the decoder copies from the start.

    - Position biases of the encoder: one head begins with the words on the left, one with those on the right, one with
      the nearest ones. With T5's random biases a word hardly knows what stands before it, and it takes thousands of
      examples to learn, say, which of several names is the first.
    - Cross-attention: the value weights begin as a rotation and the output weights as its inverse, so that what is
      attended to arrives unchanged, and, the head being the embedding table, as that word.

    Both can be learnt otherwise. After the finding that transformers learn from little data when value and output
    weights begin as (nearly) the identity (Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers",
    2023). Random numbers come from the global generator.

    Args:
        model: with three heads or more, as wide inside its attention as outside, and relative positions to 128 words.
    """
    config = model.config
    buckets = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # [buckets, heads]
    half = config.relative_attention_num_buckets // 2  # below it: the same word and the left; from it on: the right
    buckets[:, LEFT] = buckets[:, RIGHT] = 0.0
    buckets[half:, LEFT] = FAR_OFF
    buckets[:half, RIGHT] = FAR_OFF
    buckets[:, NEAR] = FAR_OFF
    buckets[: REACH + 1, NEAR] = buckets[half + 1 : half + REACH + 1, NEAR] = 0.0
    for block in model.decoder.block:
        attention = block.layer[1].EncDecAttention
        rotation = torch.linalg.qr(torch.randn_like(attention.v.weight))[0]
        attention.v.weight.copy_(rotation)
        attention.o.weight.copy_(rotation.T)
