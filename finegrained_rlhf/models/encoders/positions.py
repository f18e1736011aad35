"""More positions for a BERT: its table repeated, as Longformer's was made (Beltagy et al., 2020)."""

from __future__ import annotations

import copy
from typing import Any

import torch

from finegrained_rlhf.core.errors import ConfigError

_TABLE = "embeddings.position_embeddings.weight"


def repeat_positions(encoder: Any, tokenizer: Any, length: int) -> Any:
    """A BERT that reads `length` tokens: position i is position i modulo n of its n (thesis, 3.3.3: 4 times 512).

    Up to n tokens it gives what the encoder gives. Nothing is changed where it reads as many already.

    Args:
        encoder: as `loading.open_encoder` gives it.
        tokenizer: of the encoder; its limit is raised.
        length: tokens.

    Raises:
        ConfigError: the encoder reads fewer tokens and is no BERT with a table of absolute positions.
    """
    config = encoder.config
    own = getattr(config, "max_position_embeddings", None)
    tokenizer.model_max_length = max(length, tokenizer.model_max_length)
    if own is None or own >= length:
        return encoder
    if config.model_type != "bert" or getattr(config, "position_embedding_type", "absolute") != "absolute":
        raise ConfigError(
            f"dialki.inputs.max_length: a {config.model_type} reads {own} tokens; only a BERT's positions are repeated"
        )
    larger = copy.deepcopy(config)
    larger.max_position_embeddings = length
    state = encoder.state_dict()
    state[_TABLE] = state[_TABLE][torch.arange(length) % own].clone()
    pooled = encoder.pooler is not None
    made = type(encoder)(larger, add_pooling_layer=pooled)
    made.load_state_dict(state)
    return made.eval()
