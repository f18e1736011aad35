"""A tiny GPT-2 for a corpus.

The weights are transformers' own random ones under a seed.
"""

from __future__ import annotations

from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from finegrained_rlhf.models.tiny.config import TinyGPT2Config
from finegrained_rlhf.models.tiny.weights import drawn_under


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
