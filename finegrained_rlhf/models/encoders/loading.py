"""Bidirectional encoders from directories in the Hugging Face layout, and how long their inputs may be.

What is put on an encoder's hidden states is its user's work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModel

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.loading import load_weights, read_model_config

_OFFSET_POSITIONS = ("longformer", "roberta", "xlm-roberta", "camembert")


def input_limit(config: Any, tokenizer: Any, wanted: int) -> int:
    """The longest input in tokens that the position embeddings, the tokenizer and the configuration allow."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in _OFFSET_POSITIONS:
        positions -= (config.pad_token_id or 0) + 1
    return min(limit for limit in (wanted, positions, tokenizer.model_max_length) if limit is not None)


def is_encoder(config: Any) -> bool:
    """Whether a configuration is that of a bidirectional encoder."""
    return not config.is_encoder_decoder and type(config) in MODEL_FOR_MASKED_LM_MAPPING


def encoder_config(directory: Path) -> Any:
    """The configuration of the bidirectional encoder in a directory.

    Raises:
        ModelError: it cannot be read, or is of another family.
    """
    config = read_model_config(directory)
    if not is_encoder(config):
        raise ModelError(f"{directory}: a {config.model_type} model, expected an encoder such as BERT or Longformer")
    return config


def open_encoder(directory: Path) -> Any:
    """The encoder of a directory without its pooler, fp32, on the CPU, in evaluation mode.

    Raises:
        ModelError: missing, damaged, without some of its weights, or no encoder.
    """
    encoder_config(directory)
    model = load_weights(AutoModel, directory, torch.float32, optional=r"^pooler\.")
    if hasattr(model, "pooler"):
        model.pooler = None  # nothing here reads it, and its weights would be trained, saved and shipped for nothing
    return model.eval()
