"""A tiny Llama for a corpus: rotary positions, grouped queries, gated feed-forward layers, RMS norms.

Knows transformers' Llama. Knows no task and no training: the weights are random under a seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny.weights import check_sizes, drawn_under


@dataclass(frozen=True)
class TinyLlamaConfig:
    """Sizes of a tiny Llama.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: layers.
        num_heads: query heads; d_model must divide by it, into an even width.
        num_key_value_heads: heads of keys and values, which num_heads must divide by.
        max_length: longest input in tokens.
        tied: the output head shares the input embedding, as in SmolLM2 and the small Llama 3.2.
        initializer_range: standard deviation of the weights; Llama's 0.02 is made for a width of 4096.
    """

    d_model: int = 64
    d_ff: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_key_value_heads: int = 2
    max_length: int = 1024
    tied: bool = True
    initializer_range: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self.d_model, min(self.d_ff, self.max_length), self.num_layers, self.num_heads)
        if self.num_key_value_heads < 1 or self.num_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_heads must be a multiple of num_key_value_heads, got {self.num_heads} and "
                f"{self.num_key_value_heads}"
            )
        if self.d_model // self.num_heads % 2:
            raise ConfigError(
                f"rotary positions need heads of even width, got {self.d_model} / {self.num_heads} = "
                f"{self.d_model // self.num_heads}"
            )
        if self.initializer_range <= 0:
            raise ConfigError(f"initializer_range: expected more than 0, got {self.initializer_range}")


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
