"""A tiny GPT-2 for a corpus.

Knows transformers' GPT-2. Knows no task and no training: the weights are transformers' own random ones under a seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from finegrained_rlhf.models.tiny.weights import check_sizes, drawn_under


@dataclass(frozen=True)
class TinyGPT2Config:
    """Sizes of a tiny GPT-2: width, layers, heads and the longest input in tokens."""

    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_length: int = 1024

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.max_length, self.num_layers, self.num_heads)


def build_gpt2(
    tokenizer: PreTrainedTokenizerFast, config: TinyGPT2Config | None = None, seed: int = 0
) -> GPT2LMHeadModel:
    """A randomly initialised GPT-2 for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyGPT2Config()
    with drawn_under(seed):
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(tokenizer),
                n_positions=config.max_length,
                n_embd=config.d_model,
                n_layer=config.num_layers,
                n_head=config.num_heads,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return model.eval()
