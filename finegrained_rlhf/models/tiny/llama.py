"""A tiny Llama for a corpus: rotary positions, grouped queries, gated feed-forward layers, RMS norms.

The weights are random under a seed.
"""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from finegrained_rlhf.models.tiny.config import TinyLlamaConfig
from finegrained_rlhf.models.tiny.weights import drawn_under


def build_llama(
    tokenizer: PreTrainedTokenizerFast, config: TinyLlamaConfig | None = None, seed: int = 0
) -> LlamaForCausalLM:
    """A randomly initialised Llama for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyLlamaConfig()
    with drawn_under(seed):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=config.d_model,
                intermediate_size=config.d_ff,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_key_value_heads,
                max_position_embeddings=config.max_length,
                tie_word_embeddings=config.tied,
                initializer_range=config.initializer_range,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return model.eval()
