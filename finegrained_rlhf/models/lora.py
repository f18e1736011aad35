"""LoRA policies by peft: adding adapters, scoring with them off, and merged weights for saving."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.seq2seq import SEQ2SEQ_FAMILIES
from finegrained_rlhf.models.from_disk import open_adapter

ADAPTER = ".lora_"
"""In the names of an adapter's modules and weights."""


def add_lora(model: Any, config: LoraConfig) -> Any:
    """Insert adapters into `model` in place and return the peft wrapper; only the adapters require gradients.

    Raises:
        ConfigError: peft is not installed, or no layer has one of the target names.
    """
    try:
        import peft
    except ImportError:
        raise ConfigError("policy.lora needs peft: pip install peft") from None
    targets = config.target_modules or _targets_unknown_to_peft(model.config.model_type)
    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    try:
        return peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=config.rank,
                lora_alpha=config.alpha,
                lora_dropout=config.dropout,
                target_modules=list(targets) if targets else None,
                exclude_modules=_unread(model.config.model_type),
                task_type=task,
            ),
        )
    except ValueError as error:
        raise ConfigError(f"policy.lora: {error}") from None


def _targets_unknown_to_peft(model_type: str) -> tuple[str, ...] | None:
    """The family's own choice of layers where peft has none."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as known

    family = CAUSAL_FAMILIES.get(model_type) or SEQ2SEQ_FAMILIES.get(model_type)
    return None if family is None or model_type in known else family.lora


def _unread(model_type: str) -> str | None:
    """Regular expression of the layers that no text passes through; an adapter there would learn nothing."""
    family = SEQ2SEQ_FAMILIES.get(model_type)
    return rf".*\b({'|'.join(family.unread)})\b.*" if family is not None and family.unread else None


def load_adapter(model: Any, directory: str) -> Any:
    """Continue from a saved adapter. The wrapper holds it twice: `default` is trained, `reference` stays frozen.

    Raises:
        ModelError: the directory holds no adapter that fits.
    """
    try:
        wrapped = open_adapter(model, directory, ("default", "reference"))
    except (ValueError, OSError, RuntimeError) as error:
        raise ModelError(f"{directory}: no adapter that fits this model ({error})") from None
    wrapped.set_adapter("default")
    return wrapped


@contextmanager
def reference_adapter(adapter: Any) -> Iterator[None]:
    """Score with the reference: the frozen starting adapter where there is one, else no adapter at all.

    It costs no second copy of the weights.
    """
    if "reference" not in adapter.peft_config:
        with adapter.disable_adapter():
            yield
        return
    adapter.set_adapter("reference")
    try:
        yield
    finally:
        adapter.set_adapter("default")
        for name, parameter in adapter.named_parameters():
            parameter.requires_grad_(".default." in name)


def _in_fp32(weight: Tensor) -> Tensor:
    """A weight as it is, but for that of a frozen base which is stored in bf16."""
    return weight.float() if weight.dtype == torch.bfloat16 else weight


def adapter_weights(model: Any) -> dict[str, Tensor]:
    """The weights of a model's adapters, by their names in the model; they share its memory."""
    return {name: tensor for name, tensor in model.state_dict().items() if ADAPTER in name}


def plain_state(model: Any, take: Callable[[Tensor], Tensor] = Tensor.detach) -> dict[str, Tensor]:
    """The weights without their adapters, under the names of the plain model, of the same shapes.

    Args:
        model: with LoRA layers.
        take: what is done with each weight, one after the other.
    """
    plain = {name: tensor for name, tensor in model.state_dict().items() if ADAPTER not in name}
    return {name.replace(".base_layer.", "."): _in_fp32(take(tensor)) for name, tensor in plain.items()}


def merged_state(model: Any, take: Callable[[Tensor], Tensor] = Tensor.detach) -> dict[str, Tensor]:
    """Plain weights with the adapter added in: W + (alpha / r) · B A, under the names of the plain model.

    Each keeps the shape of the plain weight: W [out, in], B [out, r], A [r, in].

    Weights that the model ties share their memory here too; one that has an adapter of its own gets its own.

    Args:
        model: with LoRA layers.
        take: what is done with each weight of the model first, one after the other: copied to the CPU, for example.
    """
    adapted = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    }
    state = {}
    for name, tensor in model.state_dict().items():
        if re.search(r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)\.", name):
            continue
        plain, weight = name.replace(".base_layer.", "."), _in_fp32(take(tensor))
        if plain in adapted:
            with torch.no_grad():
                weight = weight + adapted[plain].get_delta_weight("default").to(weight)
        state[plain] = weight
    return state
