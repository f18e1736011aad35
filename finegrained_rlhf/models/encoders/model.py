"""Bidirectional encoders in the Hugging Face layout: how they are opened, marked, lengthened and saved.

What stands on the hidden states, and what is written beside the weights, is the subclass's work; what marks in an input
mean is the caller's. Longer inputs: a BERT's table of positions repeated, as Longformer's was made (Beltagy et al.,
2020).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModel

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.models.loading import load_weights, read_model_config
from finegrained_rlhf.models.quiet import quiet_transformers

_TABLE = "embeddings.position_embeddings.weight"


def repeat_positions(encoder: Any, tokenizer: Any, length: int) -> Any:
    """A BERT that reads `length` tokens: position i is position i modulo n of its n (thesis, 3.3.3: 4 times 512).

    Up to n tokens it gives what the encoder gives. Nothing is changed where it reads as many already.

    Args:
        encoder: as `open_encoder` gives it.
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


def add_markers(tokenizer: Any, markers: Sequence[str], model: Any = None) -> int:
    """Make each marker one special token, behind the vocabulary where it is not part of it, and give it an embedding.

    White space before a marker belongs to it. New embeddings are drawn as the model draws its own.

    Args:
        tokenizer: changed in place; its other special tokens stay.
        markers: the tokens.
        model: whose embeddings grow where the vocabulary is larger than they are; None where there is none yet.

    Returns:
        How many markers were new to the tokenizer.
    """
    added = [AddedToken(marker, lstrip=True, normalized=False, special=True) for marker in markers]
    number = tokenizer.add_special_tokens({"extra_special_tokens": added}, replace_extra_special_tokens=False)
    if model is not None and len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        with quiet_transformers():
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return int(number)


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


class EncoderModel(nn.Module, ABC):
    """A network on an encoder (or, as a reward model, on a decoder-only model), with its tokenizer.

    Args:
        tokenizer: of the network.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    @property
    @abstractmethod
    def network(self) -> Any:
        """What transformers saves and opens."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        return int(self.tokenizer.pad_token_id)

    def save(self, directory: Path) -> None:
        """Write network and tokenizer so that `from_pretrained` opens the directory."""
        with quiet_transformers():
            self.network.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)
