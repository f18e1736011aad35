"""A tiny Longformer for a corpus.

Knows transformers' Longformer. Knows no task and no training: the weights are transformers' own random ones under a
seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LongformerConfig, LongformerForMaskedLM, PreTrainedTokenizerFast

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny.weights import check_sizes, drawn_under


@dataclass(frozen=True)
class TinyLongformerConfig:
    """Sizes of a tiny Longformer.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: layers.
        num_heads: attention heads; d_model must divide by it.
        max_length: longest input in tokens, special tokens included.
        attention_window: keys that a token sees, half of them on each side; even, at least 4. transformers pads inputs
            to a multiple of it, so small is fast.
        dropout_rate: of hidden states and attention; 0 learns fastest from scratch.
    """

    d_model: int = 64
    d_ff: int = 128
    num_layers: int = 2
    num_heads: int = 4
    max_length: int = 1024
    attention_window: int = 64
    dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)
        if self.attention_window < 4 or self.attention_window % 2:
            raise ConfigError(f"attention_window must be even and at least 4, got {self.attention_window}")
        if self.max_length < 8:
            raise ConfigError(f"max_length must be at least 8 tokens, got {self.max_length}")


def build_longformer(
    tokenizer: PreTrainedTokenizerFast, config: TinyLongformerConfig | None = None, seed: int = 0
) -> LongformerForMaskedLM:
    """A randomly initialised Longformer for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyLongformerConfig()
    if tokenizer.pad_token_id is None:
        raise ConfigError("a Longformer needs a tokenizer with a padding token")
    with drawn_under(seed):
        model = LongformerForMaskedLM(
            LongformerConfig(
                vocab_size=len(tokenizer),
                hidden_size=config.d_model,
                intermediate_size=config.d_ff,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                attention_window=[config.attention_window] * config.num_layers,
                max_position_embeddings=config.max_length + tokenizer.pad_token_id + 1,
                type_vocab_size=1,
                hidden_dropout_prob=config.dropout_rate,
                attention_probs_dropout_prob=config.dropout_rate,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                sep_token_id=tokenizer.sep_token_id,
            )
        )
    return model.eval()
