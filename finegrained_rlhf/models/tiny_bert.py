"""A tiny BERT for a corpus, with the tokens that mark dialogue turns and titles.

Knows transformers' BERT and the vocabulary of `models/tiny.py`. Knows no task and no training: the weights are random
under a seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import AddedToken
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny import check_sizes, encoder_tokenizer

DIALOGUE_TOKENS = ("<agent>", "<user>", "<parent_title>", "<text>")
"""Special tokens of dialogue inputs: who speaks, a title above a section's own, and the section's own."""


@dataclass(frozen=True)
class TinyBertConfig:
    """Sizes of a tiny BERT.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: layers.
        num_heads: attention heads; d_model must divide by it.
        max_length: longest input in tokens, special tokens included.
        dropout_rate: of hidden states and attention; 0 learns fastest from scratch.
        initializer_range: standard deviation of the random weights. BERT's own 0.02 is made for a width of 768; a
            narrow model needs a larger one to begin to learn at all.
    """

    d_model: int = 64
    d_ff: int = 256
    num_layers: int = 2
    num_heads: int = 4
    max_length: int = 512
    dropout_rate: float = 0.0
    initializer_range: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)
        if self.max_length < 8:
            raise ConfigError(f"max_length must be at least 8 tokens, got {self.max_length}")
        if self.initializer_range <= 0 or not 0 <= self.dropout_rate < 1:
            raise ConfigError(
                f"expected initializer_range > 0 and 0 <= dropout_rate < 1, got {self.initializer_range} and "
                f"{self.dropout_rate}"
            )


def dialogue_tokenizer(tokenizer: PreTrainedTokenizerFast, max_length: int) -> PreTrainedTokenizerFast:
    """The same vocabulary in the layout `<s> … </s>` (class and separator token) with `DIALOGUE_TOKENS` after it."""
    encoder = encoder_tokenizer(tokenizer, max_length)
    added = [AddedToken(token, lstrip=True, normalized=False, special=True) for token in DIALOGUE_TOKENS]
    encoder.add_special_tokens({"extra_special_tokens": added})
    return encoder


def build_bert(
    tokenizer: PreTrainedTokenizerFast, config: TinyBertConfig | None = None, seed: int = 0
) -> BertForMaskedLM:
    """A randomly initialised BERT for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyBertConfig()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
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
    return model.eval()
