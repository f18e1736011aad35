"""A tiny Longformer for a corpus.

The weights are transformers' own random ones under a seed.
"""

from __future__ import annotations

from transformers import LongformerConfig, LongformerForMaskedLM, PreTrainedTokenizerFast

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny.config import TinyLongformerConfig
from finegrained_rlhf.models.tiny.weights import drawn_under


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
