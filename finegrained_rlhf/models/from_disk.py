"""The one module through which transformers, peft and sentence-transformers open a directory; they run nothing in it.

A model may come from a stranger. No code of a directory is run, no question is asked whether it may be, no pickle is
read, and nothing outside of the directory that it names is followed. What transformers has a class of its own for is
opened by that class, whatever code lies beside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json

if TYPE_CHECKING:
    from transformers import GenerationConfig

_SAFELY: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
_OWN_CODE = "never run here"
_DESCRIBING = ("config.json", "tokenizer_config.json")
_ADAPTER = "adapter_config.json"
_KERNELS = re.compile(r"(attn|experts)_implementation")
_MODULES = (
    *("Transformer", "StaticEmbedding", "Pooling", "WeightedLayerPooling"),
    *("Normalize", "Dense", "LayerNorm", "Dropout"),
)
_PARTS = re.compile(r"sentence_transformers\.(\w+\.)*(" + "|".join(_MODULES) + ")")
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation|linear)\.\w+")


def open_config(directory: Path) -> Any:
    """The configuration of a model, by transformers' own class.

    Raises:
        ModelError: it needs code of its own, or asks for kernels.
        OSError, ValueError, KeyError: transformers cannot read it.
    """
    from transformers import AutoConfig

    _refuse_code(directory)
    return AutoConfig.from_pretrained(directory, **_SAFELY)


def open_tokenizer(directory: Path, **options: Any) -> Any:
    """A tokenizer, by transformers' own class; `options` are those of `from_pretrained`.

    Raises:
        ModelError: it needs code of its own.
        OSError, ValueError, KeyError: transformers cannot read it.
    """
    from transformers import AutoTokenizer

    _refuse_code(directory)
    try:
        return AutoTokenizer.from_pretrained(directory, **_SAFELY, **options)
    except ValueError as error:
        _refuse_needed_code(directory, error)
        raise


def open_weights(kind: Any, directory: Path, **options: Any) -> Any:
    """A model from a directory.

    Args:
        kind: transformers' class to open it with.
        directory: that holds it.
        options: of `from_pretrained`.

    Raises:
        ModelError: it needs code of its own, asks for kernels, or an adapter lies beside it.
        OSError, ValueError, RuntimeError, KeyError: transformers cannot read it.
    """
    _refuse_code(directory)
    if (directory / _ADAPTER).is_file():
        raise ModelError(f"{directory}: holds an adapter ({_ADAPTER}); expected a model alone; see policy.adapter")
    if "gguf_file" not in options:
        options["use_safetensors"] = True
    try:
        return kind.from_pretrained(directory, **_SAFELY, **options)
    except ValueError as error:
        _refuse_needed_code(directory, error)
        raise


def open_generation_config(directory: Path) -> GenerationConfig:
    """The settings of generation that lie beside a model."""
    from transformers import GenerationConfig

    return GenerationConfig.from_pretrained(directory, local_files_only=True)


def open_adapter_config(directory: str | Path) -> Any:
    """The configuration of a saved LoRA adapter. The base model that it names is never opened.

    Raises:
        ModelError: there is none, it is of another kind, or it names a module that is to be imported.
    """
    import peft

    path = Path(directory) / _ADAPTER
    if not path.is_file():
        raise ModelError(f"{directory}: no adapter here (expected {path})")
    record = _mapping(path, "the configuration of an adapter")
    if record.get("peft_type") != "LORA":
        raise ModelError(f"{path}: peft_type: {record.get('peft_type')!r}: expected LORA")
    if record.get("megatron_config") is not None:
        raise ModelError(f"{path}: megatron_config: names a module ({record.get('megatron_core')}), {_OWN_CODE}")
    try:
        return peft.PeftConfig.from_pretrained(str(directory))
    except (ValueError, OSError, TypeError) as error:
        raise ModelError(f"{path}: no configuration of an adapter ({first_line(error)})") from None


def open_adapter(model: Any, directory: str | Path, names: Sequence[str]) -> Any:
    """A saved LoRA adapter on a model, once under each name: a peft wrapper, in which the first is to be trained.

    Raises:
        ModelError: no adapter, one that names code, or pickled weights.
        ValueError, OSError, RuntimeError: it does not fit the model.
    """
    import peft

    config = open_adapter_config(directory)
    if not (Path(directory) / "adapter_model.safetensors").is_file():
        raise ModelError(f"{directory}: no adapter_model.safetensors; weights in other formats are not read")
    first, *others = names
    wrapped = peft.PeftModel.from_pretrained(model, str(directory), first, is_trainable=True, config=config)
    for name in others:
        wrapped.load_adapter(str(directory), adapter_name=name, is_trainable=False)
    return wrapped


def open_sentence_transformer(directory: Path, device: str) -> Any:
    """A model of sentence-transformers whose parts are that library's own.

    Raises:
        ConfigError: sentence-transformers is not installed.
        ModelError: it names other parts, holds pickled weights only, or cannot be opened.
    """
    made: Any = _sentence_transformers(directory).SentenceTransformer(
        str(directory), device=device, model_kwargs={"use_safetensors": True}, **_SAFELY
    )
    return made


def open_cross_encoder(directory: Path, device: str, max_length: int) -> Any:
    """An encoder with one number for a pair of texts, trained, or new on a model of sentence-transformers.

    Raises:
        ConfigError: sentence-transformers is not installed.
        ModelError: it names other parts, holds pickled weights only, or cannot be opened.
    """
    made: Any = _sentence_transformers(directory).CrossEncoder(
        str(directory),
        num_labels=1,
        max_length=max_length,
        device=device,
        model_kwargs={"use_safetensors": True},
        **_SAFELY,
    )
    return made


def _sentence_transformers(directory: Path) -> Any:
    """The library, once a directory's parts are known to be its own."""
    _check_parts(directory)
    try:
        import sentence_transformers
    except ImportError:
        problem = f"{directory} is a sentence-transformers model: pip install -e '.[retrieval]' in a checkout"
        raise ConfigError(problem) from None
    return sentence_transformers


def _check_parts(directory: Path) -> None:
    """Refuse a sentence-transformers directory that names code, lies in other directories, or holds pickles only."""
    record = directory / "modules.json"
    parts = read_json(record)
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise ModelError(f"{record}: expected a list of modules")
    for number, module in enumerate(parts):
        kind, place = module.get("type"), module.get("path", "")
        if not isinstance(kind, str) or not _PARTS.fullmatch(kind):
            raise ModelError(f"{record}: [{number}].type: {kind!r} is no module that is known here, and {_OWN_CODE}")
        if not (directory / str(place)).resolve().is_relative_to(directory.resolve()):
            raise ModelError(f"{record}: [{number}].path: {place!r} lies outside of {directory}")
    for part in (directory / str(module.get("path", "")) for module in parts):
        _refuse_code(part)
        if (part / _ADAPTER).is_file():
            raise ModelError(f"{part}: holds an adapter ({_ADAPTER}), whose base model is not followed")
        if any(part.glob("*.bin")) and not any(part.glob("*.safetensors")):
            raise ModelError(
                f"{part}: holds pickled weights only, which are never loaded here; open the model once with "
                "sentence-transformers where you trust it and save it again: that writes safetensors"
            )
        for path in sorted({*part.glob("*.json")} - {part / "tokenizer.json", part / "vocab.json"}):
            _check_settings(path)


def _check_settings(path: Path) -> None:
    """Refuse the settings of one part where they name a class elsewhere, or ask for code."""
    try:
        settings = read_json(path)
    except DataError:
        return  # vocabularies and the like: whoever reads them says what is wrong
    for key, value in _leaves(settings):
        last = key.rpartition(".")[2]
        if last == "activation_function" and "." in str(value) and not _ACTIVATION.fullmatch(str(value)):
            raise ModelError(f"{path}: {key}: {value!r} is no activation of torch")
        if last == "trust_remote_code" and value:
            raise ModelError(f"{path}: {key}: asks for code of its own, {_OWN_CODE}")


def _refuse_code(directory: Path) -> None:
    """Refuse a model whose configuration transformers has no class for, or that asks for kernels from elsewhere."""
    path = directory / _DESCRIBING[0]
    if not path.is_file():
        return
    record = _mapping(path, "a model configuration")
    for key, value in _leaves(record):
        if _KERNELS.search(key) and isinstance(value, str) and "/" in value:
            raise ModelError(f"{path}: {key}: {value!r} names a kernel, which is code, {_OWN_CODE}")
    code = record.get("auto_map")
    if code and record.get("model_type") not in _model_types():
        raise ModelError(
            f"{path}: auto_map: the model needs code of its own ({_one_of(code)}), {_OWN_CODE}; expected a model_type "
            f"of transformers, got {record.get('model_type')!r}"
        )


def _model_types() -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING


def _refuse_needed_code(directory: Path, error: ValueError) -> None:
    """Say in one line which file names the code without which transformers cannot open a directory."""
    if "trust_remote_code" not in str(error):
        return
    for name in _DESCRIBING:
        path = directory / name
        code = _mapping(path, "a configuration").get("auto_map") if path.is_file() else None
        if code:
            raise ModelError(f"{path}: auto_map: needs code of its own ({_one_of(code)}), {_OWN_CODE}") from None


def _mapping(path: Path, what: str) -> Mapping[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: it is no JSON, or no object.
    """
    try:
        value = read_json(path)
    except DataError as error:
        raise ModelError(f"{path}: not {what} ({error.problem})") from None
    if not isinstance(value, Mapping):
        raise ModelError(f"{path}: not {what} (expected a JSON object, got {type(value).__name__})")
    return value


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, key)
    else:
        yield key, value


def _one_of(code: Any) -> str:
    values = [value for _, value in _leaves(code) if isinstance(value, str)]
    return values[0] if values else str(code)


def first_line(error: Exception) -> str:
    """What an error says first."""
    return str(error).strip().split("\n")[0]
