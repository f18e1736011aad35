"""A tiny BERT for a corpus, with tokens that mark parts of its inputs.

Callers say what the markers are, and the weights are random under a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from finegrained_rlhf.models.encoders.markers import add_markers
from finegrained_rlhf.models.tiny.config import TinyBertConfig
from finegrained_rlhf.models.tiny.tokenizers import encoder_tokenizer
from finegrained_rlhf.models.tiny.weights import drawn_under


def marked_tokenizer(
    tokenizer: PreTrainedTokenizerFast, max_length: int, markers: Sequence[str]
) -> PreTrainedTokenizerFast:
    """The same vocabulary in the layout `<s> … </s>` (class and separator token) with `markers` after it."""
    encoder = encoder_tokenizer(tokenizer, max_length)
    add_markers(encoder, markers)
    return encoder


def build_bert(
    tokenizer: PreTrainedTokenizerFast, config: TinyBertConfig | None = None, seed: int = 0
) -> BertForMaskedLM:
    """A randomly initialised BERT for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyBertConfig()
    with drawn_under(seed):
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=config.d_model,
                intermediate_size=config.d_ff,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                max_position_embeddings=config.max_length,
                hidden_dropout_prob=config.dropout_rate,
                attention_probs_dropout_prob=config.dropout_rate,
                initializer_range=config.initializer_range,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
        if config.structured:
            structure_attention(model.bert)
    return model.eval()


POSITION_GAIN, WORD_GAIN = 2.0, 1.0
"""Scale of the query and key weights: how sharply heads begin to attend to near positions, and to equal words."""
SLOWEST = 200.0
"""Slowest wave of the positions, in tokens a radian."""


@torch.no_grad()
def structure_attention(bert: BertModel) -> None:
    """Set the weights so that every layer begins with half of its heads on near positions and half on equal words.

    Positions are sine and cosine waves in the first half of the width, words random in the second half. Query and key
    weights begin as the same random rotation of one of the halves, so that attention begins as the similarity of
    positions (first heads) or of words (the other heads). Everything can still be learnt otherwise. After the finding
    that transformers learn from little data when query and key weights begin alike (Trockman and Kolter, "Mimetic
    Initialization of Self-Attention Layers", 2023). Random weights come from the global generator.
    """
    half = bert.config.hidden_size // 2
    embeddings = bert.embeddings
    for table in (embeddings.position_embeddings, embeddings.word_embeddings, embeddings.token_type_embeddings):
        table.weight.zero_()
    embeddings.position_embeddings.weight[:, :half] = position_waves(
        embeddings.position_embeddings.num_embeddings, half
    )
    embeddings.word_embeddings.weight[:, half:].normal_()
    for layer in bert.encoder.layer:
        attention = layer.attention.self
        heads, size = attention.num_attention_heads, attention.attention_head_size
        weight = torch.zeros_like(attention.query.weight)
        for head in range(heads):
            of_words = head >= heads // 2
            rotation = torch.linalg.qr(torch.randn(weight.shape[1] - half if of_words else half, size))[0].T
            columns = slice(half, None) if of_words else slice(half)
            weight[head * size : (head + 1) * size, columns] = rotation * (WORD_GAIN if of_words else POSITION_GAIN)
        attention.query.weight.copy_(weight)
        attention.key.weight.copy_(weight)


def position_waves(length: int, width: int) -> Tensor:
    """Sine and cosine waves, fp32 [length, width], mean square 1."""
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(SLOWEST) / width))
    return math.sqrt(2.0) * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
