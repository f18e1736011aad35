"""Whether a directory holds a whole model, told by its files: no weight is read, no class of a model is imported.

Loading a model says the same and more, but minutes or hours later: after what a run prepares, or after the earlier
steps of an experiment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError, ModelError
from finegrained_rlhf.core.files import read_json

CONFIG = "config.json"
VOCABULARIES = (
    "tokenizer.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)
"""Files of which a tokenizer has at least one."""
_EXPORTS = ("policy", "model", "model/query", "model/passage")
"""What runs call the models that they export."""
_INDEX = "model.safetensors.index.json"
_SENTENCE_ENCODER = "modules.json"
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_OTHER_HEAD = re.compile(r"For(?:Token|Sequence|Multiple)\w*$")


def check_model(path: str, settings: Mapping[str, Any] | None = None) -> None:
    """Require a model of any kind: a directory of Hugging Face's layout, a run directory, or a sentence encoder's.

    Raises:
        ModelError: there is none, or its configuration, tokenizer or weights are damaged.
    """
    if (Path(path) / _SENTENCE_ENCODER).is_file():
        _read_object(Path(path) / _SENTENCE_ENCODER, list)
        _check_weights(Path(path).rglob("*.safetensors"), Path(path))
    else:
        read_model_files(path)


def check_language_model(path: str, settings: Mapping[str, Any] | None = None) -> None:
    """Require a policy: a causal or a sequence-to-sequence language model with a tokenizer.

    Raises:
        ModelError: it is missing, damaged, or a model of another kind.
    """
    from transformers.models.auto import modeling_auto

    directory, config = read_model_files(path, ("policy",))
    families = {
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    heads = [name for name in config.get("architectures") or () if _OTHER_HEAD.search(str(name))]
    if config.get("model_type") not in families or heads:
        what = heads[0] if heads else f"a {config.get('model_type')} model"
        raise ModelError(f"{directory}: {what}, expected a causal or a sequence-to-sequence language model")
    check_tokenizer(str(directory))


def check_backbone(path: str, settings: Mapping[str, Any] | None = None) -> None:
    """Require a model without regard to its tokenizer, in a model directory or a run with a policy.

    Raises:
        ModelError: it is missing or damaged.
    """
    read_model_files(path, ("policy",))


def check_tokenizer(path: str, settings: Mapping[str, Any] | None = None) -> None:
    """Require a tokenizer, in a directory of its own or beside a model.

    Raises:
        ModelError: it is missing or damaged.
    """
    places = [Path(path), *(Path(path) / export for export in _EXPORTS)]
    for place in places:
        if any((place / name).is_file() for name in VOCABULARIES):
            return _check_vocabulary(place)
    raise ModelError(f"{path}: no tokenizer here (expected one of {', '.join(VOCABULARIES)})")


def check_adapter(path: str, settings: Mapping[str, Any] | None = None) -> None:
    """Require a saved adapter.

    Raises:
        ModelError: it is missing or damaged.
    """
    config, weights = (Path(path) / name for name in _ADAPTER)
    if not config.is_file():
        raise ModelError(f"{path}: no adapter here (expected {config})")
    _read_object(config, dict)
    _check_weights([weights] if weights.is_file() else (), Path(path))


def read_model_files(path: str | Path, exports: Iterable[str] = _EXPORTS) -> tuple[Path, dict[str, Any]]:
    """Directory and configuration of a model whose files are whole.

    Args:
        path: of the model directory, or of a run.
        exports: what such a run calls its model.

    Raises:
        ModelError: there is no `config.json`, or it, the tokenizer or the header of the weights is damaged.
    """
    exports = tuple(exports)
    places = [Path(path), *(Path(path) / export for export in exports)]
    directory = next((place for place in places if (place / CONFIG).is_file()), None)
    if directory is None:
        named = " or ".join(f"{export}/{CONFIG}" for export in exports)
        other = next((name for name in _EXPORTS if (Path(path) / name / CONFIG).is_file()), None)
        has = f"; it is a run with {other}/" if other else ""
        raise ModelError(f"{path}: no model here (expected {Path(path) / CONFIG} or a run directory with {named}{has})")
    config = _read_object(directory / CONFIG, dict)
    _check_vocabulary(directory)
    _check_weights(_weight_files(directory), directory)
    return directory, config


def _weight_files(directory: Path) -> list[Path]:
    """The files of weights, those that an index of shards names included."""
    files = set(directory.glob("*.safetensors"))
    if (directory / _INDEX).is_file():
        shards = _read_object(directory / _INDEX, dict).get("weight_map")
        if not isinstance(shards, dict):
            raise ModelError(f"{directory / _INDEX}: expected an index of weights, got no weight_map")
        files |= {directory / str(name) for name in shards.values()}
    return sorted(files)


def _check_weights(files: Iterable[Path], directory: Path) -> None:
    """Open every file: its header must be readable, and the file as long as the header says."""
    from safetensors import SafetensorError, safe_open

    tensors = 0
    for file in files:
        try:
            with safe_open(file, framework="numpy") as weights:
                tensors += len(weights.keys())
        except FileNotFoundError:
            raise ModelError(f"{file}: no such file, though the index of weights names it") from None
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: damaged weights ({error})") from None
    if not tensors:
        raise ModelError(f"{directory}: no *.safetensors; weights in other formats are not read")


def _check_vocabulary(directory: Path) -> None:
    for name in VOCABULARIES:
        if name.endswith(".json") and (directory / name).is_file():
            _read_object(directory / name, dict)


def _read_object(path: Path, kind: type) -> Any:
    """A JSON file with an object or an array.

    Raises:
        ModelError: it is damaged or holds something else.
    """
    try:
        value = read_json(path)
    except (DataError, OSError) as error:
        raise ModelError(str(error)) from None
    if not isinstance(value, kind):
        raise ModelError(f"{path}: expected {'an object' if kind is dict else 'an array'}, got {type(value).__name__}")
    return value
