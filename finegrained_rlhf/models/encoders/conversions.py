"""One encoder made of another: a Longformer of a BERT or RoBERTa, two towers of a checkpoint of Facebook's DPR code.

The Longformer is the same function on texts that its window covers, and takes longer inputs. Source: Beltagy et al.
2020, section 5: the positions are copied one after the other, and the projections of global attention begin as those of
local attention. A checkpoint of DPR holds `model_dict` with `question_model.…` and `ctx_model.…`. The file is a pickle,
of which torch reads tensors and plain containers alone: nothing is executed.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import BertModel, LongformerConfig, LongformerModel

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.models.encoders.jobs import ConvertDPR, MakeLongformer
from finegrained_rlhf.models.encoders.model import encoder_config, input_limit, open_encoder
from finegrained_rlhf.models.encoders.towers import PASSAGE_TOWER, QUERY_TOWER
from finegrained_rlhf.models.loading import load_tokenizer, model_directory, refuse_not_finite
from finegrained_rlhf.models.quiet import quiet_transformers

_PREFIXES = {QUERY_TOWER: "question_model.", PASSAGE_TOWER: "ctx_model."}
_UNREAD = ("pooler.", "embeddings.position_ids")
"""What a checkpoint may hold of a BERT that no vector depends on."""
_STATE_NAMES = ("dpr.utils.model_utils.CheckpointState", "CheckpointState")


class _State(NamedTuple):
    """What stands for DPR's own class where a checkpoint was saved as one, and not as a dictionary."""

    model_dict: Any
    optimizer_dict: Any = None
    scheduler_dict: Any = None
    offset: Any = None
    epoch: Any = None
    encoder_params: Any = None


def read_dpr_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, `question_model.…` and `ctx_model.…`, of any shape, on the CPU.

    Raises:
        ModelError: the file is missing or damaged, holds anything but weights and plain values, or no such tensors.
    """
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        with torch.serialization.safe_globals([(_State, name) for name in _STATE_NAMES]):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: cannot be read as weights alone ({_reason(error)})") from None
    state_dict = state.model_dict if isinstance(state, _State) else None
    if isinstance(state, Mapping):
        state_dict = state.get("model_dict")
    if not isinstance(state_dict, Mapping):
        raise ModelError(f"{path}: holds no model_dict, expected a checkpoint of DPR")
    weights = {str(name): value for name, value in state_dict.items() if isinstance(value, Tensor)}
    for prefix in _PREFIXES.values():
        if not any(name.startswith(prefix) for name in weights):
            raise ModelError(f"{path}: model_dict holds no {prefix}…, expected both towers")
    return weights


def _tower(weights: Mapping[str, Tensor], name: str, config: Any, path: Path) -> BertModel:
    """One of the two, fp32; every weight must be there, in its shape, and none be left over."""
    prefix = _PREFIXES[name]
    state_dict = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    state_dict = {key: value for key, value in state_dict.items() if not key.startswith(_UNREAD)}
    with quiet_transformers():
        tower = BertModel(config, add_pooling_layer=False)
    wanted = {key: value for key, value in tower.state_dict().items() if not key.startswith(_UNREAD)}
    if missing := sorted(wanted.keys() - state_dict.keys()):
        raise ModelError(f"{path}: {len(missing)} weights are missing, for example {prefix}{missing[0]}")
    if unknown := sorted(state_dict.keys() - wanted.keys()):
        raise ModelError(f"{path}: {prefix}{unknown[0]} is no weight of a BERT ({len(unknown)} such)")
    for key, value in state_dict.items():
        if value.shape != wanted[key].shape:
            shapes = f"{list(value.shape)}, the model's configuration says {list(wanted[key].shape)}"
            raise ModelError(f"{path}: {prefix}{key} has the shape {shapes}")
    tower.load_state_dict({key: value.float() for key, value in state_dict.items()}, strict=False)
    refuse_not_finite(tower, path)
    return tower.eval()


def _reason(error: Exception) -> str:
    """What torch refuses, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("WeightsUnpickler error", "Unsupported"))]
    return (named or lines or [type(error).__name__])[0]


def convert_dpr(job: ConvertDPR) -> Path:
    """Read the weights of both towers and save each as a model directory of its own."""
    directory = model_directory(job.model, export="model")
    config, tokenizer = encoder_config(directory), load_tokenizer(directory)
    if config.model_type != "bert":
        raise ModelError(f"{directory}: a {config.model_type} model, expected a BERT")
    weights = read_dpr_weights(Path(job.checkpoint))
    towers = {name: _tower(weights, name, config, Path(job.checkpoint)) for name in _PREFIXES}
    with atomic_directory(Path(job.output_dir)) as place, quiet_transformers():
        for name, tower in towers.items():
            tower.save_pretrained(place / name)
            tokenizer.save_pretrained(place / name)
    size = sum(parameter.numel() for tower in towers.values() for parameter in tower.parameters())
    print(f"{job.checkpoint} -> {job.output_dir}: two towers, {size:,} weights")
    return Path(job.output_dir)


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
