"""Checkpoints of Facebook's DPR code as two Hugging Face directories.

Such a checkpoint holds `model_dict` with `question_model.…` and `ctx_model.…`. The file is a pickle, of which torch
reads tensors and plain containers alone: nothing is executed.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import BertModel

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.models.encoders.jobs import ConvertDPR
from finegrained_rlhf.models.encoders.loading import encoder_config
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
