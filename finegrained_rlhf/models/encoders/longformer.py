"""A Longformer made of a BERT or RoBERTa: the same function on texts that its window covers, and longer inputs.

Source: Beltagy et al. 2020, section 5: the positions are copied one after the other, and the projections of global
attention begin as those of local attention.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LongformerConfig, LongformerModel

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.models.encoders.jobs import MakeLongformer
from finegrained_rlhf.models.encoders.loading import encoder_config, input_limit, open_encoder
from finegrained_rlhf.models.loading import load_tokenizer, model_directory
from finegrained_rlhf.models.quiet import quiet_transformers

_ROBERTAS = ("roberta", "xlm-roberta", "camembert")
_COPIED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
_POSITIONS = "embeddings.position_embeddings.weight"


def tiled_positions(table: Tensor, offset: int, pad_id: int, length: int) -> Tensor:
    """A Longformer's position table [pad_id + 1 + length, D]: position i is row i modulo n of the source's n positions.

    Longformer counts positions from `pad_id` + 1, as RoBERTa does, and BERT from 0; the rows before are never read and
    0, but for those that the source has there too.

    Args:
        table: the source's, [offset + n, D].
        offset: rows before its first position.
        pad_id: the padding token.
        length: positions of the new table.
    """
    positions = table[offset:]
    tiled = table.new_zeros(pad_id + 1 + length, table.shape[1])
    tiled[: min(offset, pad_id + 1)] = table[: min(offset, pad_id + 1)]
    tiled[pad_id + 1 :] = positions[torch.arange(length) % len(positions)]
    return tiled


def longformer_of(source: Any, length: int, window: int) -> LongformerModel:
    """A Longformer of a BERT or RoBERTa encoder, fp32, in evaluation mode.

    Args:
        source: transformers' model without a head.
        length: longest input in tokens, special tokens included.
        window: keys that a token sees beside its own, half of them on each side; even.
    """
    config = source.config
    offset = config.pad_token_id + 1 if config.model_type in _ROBERTAS else 0
    pad_id = config.pad_token_id
    settings = {name: getattr(config, name) for name in _COPIED}
    with quiet_transformers():
        model = LongformerModel(
            LongformerConfig(
                **settings,
                attention_window=[window] * config.num_hidden_layers,
                max_position_embeddings=pad_id + 1 + length,
            ),
            add_pooling_layer=False,
        )
    weights = {name: value for name, value in source.state_dict().items() if not name.startswith("pooler.")}
    weights[_POSITIONS] = tiled_positions(weights[_POSITIONS], offset, pad_id, length)
    for name in [name for name in weights if ".attention.self." in name]:
        layer, _, part = name.rpartition(".attention.self.")
        projection, _, kind = part.partition(".")
        weights[f"{layer}.attention.self.{projection}_global.{kind}"] = weights[name].clone()
    wanted = model.state_dict().keys()
    model.load_state_dict({name: value for name, value in weights.items() if name in wanted})
    return model.eval()


def make_longformer(job: MakeLongformer) -> Path:
    """Copy the weights of a BERT or RoBERTa into a Longformer with tiled positions, and save it."""
    directory = model_directory(job.model, export="model")
    config, tokenizer = encoder_config(directory), load_tokenizer(directory)
    if config.model_type not in ("bert", *_ROBERTAS):
        raise ModelError(f"{directory}: a {config.model_type} model, expected a BERT or RoBERTa")
    if getattr(config, "is_decoder", False) or getattr(config, "position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{directory}: expected an encoder with a table of absolute positions")
    if config.pad_token_id is None:
        raise ModelError(f"{directory}: the configuration names no padding token, behind which positions are counted")
    length = input_limit(config, tokenizer, config.max_position_embeddings)
    if job.max_length < length:
        raise ConfigError(
            f"max_length: the source reads {length} tokens, expected at least as many, got {job.max_length}"
        )
    window = 2 * length if job.window is None else job.window
    model = longformer_of(open_encoder(directory), job.max_length, window)
    tokenizer.model_max_length = job.max_length
    with atomic_directory(Path(job.output_dir)) as place, quiet_transformers():
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
    covered = min(window // 2 + 1, length)
    print(f"{job.output_dir}: {job.max_length} tokens, window {window}; as {directory} on up to {covered} tokens")
    return Path(job.output_dir)
