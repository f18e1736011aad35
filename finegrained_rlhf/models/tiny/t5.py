"""A tiny T5 for a corpus; it can begin with directions and with copying, so that it learns from little data.

The weights are random under a seed.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from finegrained_rlhf.models.tiny.config import TinyT5Config
from finegrained_rlhf.models.tiny.weights import drawn_under

LEFT, RIGHT, NEAR, EQUAL = range(4)
"""The encoder heads that begin with a direction, and the one that begins with equal words; others begin as T5's own."""
FAR_OFF = -5.0
"""Bias of the positions that a head with a direction begins without."""
REACH = 2
"""Words on each side that the near head begins with."""


def build_t5(
    tokenizer: PreTrainedTokenizerFast, config: TinyT5Config | None = None, seed: int = 0
) -> T5ForConditionalGeneration:
    """A randomly initialised T5 for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyT5Config()
    with drawn_under(seed):
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=len(tokenizer),
                d_model=config.d_model,
                d_kv=config.d_model // config.num_heads,
                d_ff=config.d_ff,
                num_layers=config.num_layers,
                num_decoder_layers=config.num_layers,
                num_heads=config.num_heads,
                feed_forward_proj="gated-gelu" if config.gated else "relu",
                tie_word_embeddings=config.tied,
                dropout_rate=config.dropout_rate,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                decoder_start_token_id=tokenizer.pad_token_id,
            )
        )
        if not config.tied:  # transformers 5 ties a T5 whatever its configuration says, unless a file holds both
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * config.d_model**-0.5)
        if config.structured:
            structure_t5(model)
        if config.matching:
            match_words(model)
    return model.eval()


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


@torch.no_grad()
def match_words(model: T5ForConditionalGeneration) -> None:
    """Set the weights so that an encoder head of every layer begins with the other places of the same word.

    Query and key weights of the head begin as the same rotation of the words (Trockman and Kolter, 2023, as
    `structure_attention` of the tiny BERT), and its position bias prefers other places to the word's own: a word that
    is nowhere else finds itself. For models from scratch that have to find which passage a question is about. It can be
    learnt otherwise. Random numbers come from the global generator.

    Args:
        model: with four heads or more.
    """
    config = model.config
    rows = slice(EQUAL * config.d_kv, (EQUAL + 1) * config.d_kv)
    for block in model.encoder.block:
        attention = block.layer[0].SelfAttention
        rotation = torch.linalg.qr(torch.randn(config.d_model, config.d_kv))[0].T
        attention.q.weight[rows] = rotation
        attention.k.weight[rows] = rotation
    buckets = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # [buckets, heads]
    buckets[:, EQUAL] = 0.0
    buckets[0, EQUAL] = FAR_OFF
