"""Policies and value models from directories, and back into them, in the ordinary Hugging Face layout."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.hub import place_of_model
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.models.from_disk import first_line, open_config, open_tokenizer, open_weights
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.models.weights.files import VOCABULARIES
from finegrained_rlhf.text.chat import recorded_prompt

if TYPE_CHECKING:
    import torch

    from finegrained_rlhf.models.policy import Policy
    from finegrained_rlhf.models.value import ValueModel


def model_directory(path: ModelName | Path, export: str = "policy", revision: str | None = None) -> Path:
    """The directory that holds a model: `path`, `path/policy` of a run directory, or that of a Hub name in the cache.

    Args:
        path: of a directory, or `org/name` or `org/name@revision` on the Hub where there is no such directory.
        export: what a run calls its model.
        revision: of the Hub's model; a directory has none.

    Raises:
        ModelError: no `config.json` here, and no model of that name in the cache or on the Hub.
    """
    path = place_of_model(path, revision)
    for candidate in (path, path / export):
        if (candidate / "config.json").is_file():
            return candidate
    raise ModelError(
        f"{path}: no model here (expected {path}/config.json or a run directory with {export}/config.json)"
    )


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer saved beside a model.

    Raises:
        ModelError: it is missing or unreadable.
    """
    if not any((directory / name).is_file() for name in VOCABULARIES):  # transformers would make an empty one
        raise ModelError(f"{directory}: no tokenizer here (expected one of {', '.join(VOCABULARIES)})")
    try:
        return open_tokenizer(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{directory}: no readable tokenizer ({first_line(error)})") from None


def read_model_config(directory: Path) -> Any:
    """The configuration of the model in a directory.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return open_config(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{directory}/config.json: not a model configuration ({first_line(error)})") from None


def load_weights(auto: Any, directory: Path, dtype: torch.dtype, optional: str | None = None, **options: Any) -> Any:
    """A transformers model from a directory, with every weight that its class has.

    Args:
        auto: transformers' class to open it with.
        directory: that holds it.
        dtype: of the weights.
        optional: regular expression, found in the names of weights that may be absent; None: none may.
        options: of the model's configuration, as `from_pretrained` takes them.

    Raises:
        ModelError: it cannot be opened, or lacks weights, or a weight is not finite.
    """
    from finegrained_rlhf.models.families.attention import exact_attention

    try:
        with quiet_transformers():
            model, info = open_weights(auto, directory, dtype=dtype, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError, KeyError, json.JSONDecodeError) as error:
        weights = any(directory.glob("*.safetensors"))
        why = first_line(error) if weights else "no *.safetensors; weights in other formats are not read"
        raise ModelError(f"{directory}: cannot be opened as a model ({why})") from None
    except Exception as error:  # safetensors raises its own type for damaged files
        if type(error).__module__.startswith("safetensors"):
            raise ModelError(f"{directory}: damaged weights ({first_line(error)})") from None
        raise
    missing = sorted(name for name in info["missing_keys"] if optional is None or not re.search(optional, name))
    if missing:
        raise ModelError(
            f"{directory}: the weights are not those of a {type(model).__name__}: {len(missing)} are missing, "
            f"for example {missing[0]}"
        )
    refuse_not_finite(model, directory)
    exact_attention(model)
    return model


def refuse_not_finite(model: torch.nn.Module, directory: Path) -> None:
    """Raise ModelError when a weight that was read from `directory` is NaN or infinite."""
    import torch

    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(f"{directory}: the weights hold values that are not finite, for example in {name}")


def load_policy(config: PolicyConfig, device: torch.device | str) -> Policy:
    """Open a policy with its adapter, ready to be trained or only read, on a device."""
    from finegrained_rlhf.models.weights.frozen import store_frozen

    policy = open_policy(config.path, config.lora, config.adapter, config.revision)
    if config.gradient_checkpointing:
        policy.use_gradient_checkpointing()
    policy.frozen_in_bf16 = config.frozen_dtype == "bfloat16"
    if policy.frozen_in_bf16 and policy.adapter is not None:
        store_frozen(policy.model)
    return policy.to(device)


def open_policy(
    path: ModelName | Path, lora: LoraConfig | None = None, adapter: str | None = None, revision: str | None = None
) -> Policy:
    """A policy from a model directory, run directory or Hub name, in evaluation mode, fp32, on the CPU."""
    import torch
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
    )

    from finegrained_rlhf.models.lora import add_lora, load_adapter
    from finegrained_rlhf.models.policy import CausalPolicy, Seq2SeqPolicy

    directory = model_directory(path, revision=revision)
    config = read_model_config(directory)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    generating = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if config.is_encoder_decoder else MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in generating:
        raise ModelError(f"{directory}: a {config.model_type} model, expected a policy such as T5 or Llama")
    model = load_weights(auto, directory, torch.float32)
    tokenizer = load_tokenizer(directory)
    wrapper = None
    if adapter is not None:
        wrapper = load_adapter(model, adapter)
    elif lora is not None:
        wrapper = add_lora(model, lora)
    kind: type[Policy] = Seq2SeqPolicy if config.is_encoder_decoder else CausalPolicy
    try:
        policy = kind(model, tokenizer, wrapper)
    except ModelError as error:
        raise ModelError(f"{directory}: {error}") from None
    policy.prompt = recorded_prompt(directory)
    return policy.eval()


def load_value(config: ValueConfig, policy: Policy, heads: int) -> ValueModel | None:
    """Build a value model for a policy: its own, one on the policy's trunk, or none."""
    import torch
    from transformers import AutoModel

    from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel

    if config.kind == "none":
        return None
    if config.kind == "shared":
        return SharedTrunkValueModel(policy, heads).to(policy.device)
    assert config.path is not None
    backbone = load_weights(AutoModel, model_directory(config.path, revision=config.revision), torch.float32)
    return SeparateValueModel(backbone, policy, heads).to(policy.device).eval()


class _Embedding(Protocol):
    @property
    def model(self) -> Any: ...


def check_vocabulary(policy: _Embedding, prompts_ids: Sequence[Sequence[int]]) -> None:
    """Require every prompt id to have an embedding row.

    Args:
        policy: it, or another model of ours on one of transformers'.
        prompts_ids: token ids of prompts, or of other texts that it reads.

    Raises:
        ModelError: the tokenizer knows ids that the model has no embedding for.
    """
    rows = policy.model.get_input_embeddings().weight.shape[0]
    largest = max((max(ids) for ids in prompts_ids if len(ids)), default=0)
    if largest >= rows:
        raise ModelError(
            f"the tokenizer gives id {largest} but the model has {rows} embeddings: they do not belong together"
        )
