"""What a reward model stands on: a bidirectional encoder, or a decoder-only model of a family that is known here.

A decoder-only model needs padding on the right with a token that its configuration names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.models.auto import modeling_auto

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.encoders.loading import input_limit, is_encoder
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.loading import load_tokenizer, load_weights, read_model_config
from reward_models.kinds import Form

ID2LABEL = {0: "no_error", 1: "has_error"}
_NEW_HEAD = r"^(classifier|pre_classifier|score)\.|\.pooler\."
_FORMS: Mapping[Form, tuple[Any, Mapping[str, Any]]] = {
    "segment": (
        AutoModelForTokenClassification,
        {"num_labels": len(ID2LABEL), "id2label": ID2LABEL, "label2id": {name: i for i, name in ID2LABEL.items()}},
    ),
    "sequence": (AutoModelForSequenceClassification, {"num_labels": 1}),
}
"""Of each form, transformers' class and the settings of a new head."""
_CLASSIFIERS: Mapping[Form, Mapping[str, Any]] = {
    "segment": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
"""Of each form, transformers' classifiers by `model_type`."""


def is_causal(config: Any) -> bool:
    """Whether a token of the model sees only what stands before it."""
    return config.model_type in CAUSAL_FAMILIES


def longest_input(config: Any, tokenizer: Any, wanted: int) -> int:
    """The longest input in tokens.

    Where rotary positions change with the longest row of a batch (longrope), it is the length up to which they do not:
    a score must not depend on what else is in the batch.
    """
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = [rotary] if "rope_type" in rotary else [kind for kind in rotary.values() if isinstance(kind, dict)]
    limits = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    return min([input_limit(config, tokenizer, wanted), *(limit for limit in limits if limit)])


def open_classifier(directory: Path, form: Form, new_head: bool) -> tuple[Any, Any]:
    """The classification model of a form, fp32, on the CPU, and its tokenizer.

    Args:
        directory: that holds both.
        form: labels of segments, or one score for a whole answer.
        new_head: put a head on a language model, drawn from the global generator; False opens a classifier.

    Raises:
        ModelError: missing, damaged, without some of its weights, or of a family that is no reward model here.
    """
    config, (auto, head) = read_model_config(directory), _FORMS[form]
    if is_causal(config):
        return _open_causal(directory, config, form, new_head)
    if not is_encoder(config):
        raise ModelError(
            f"{directory}: a {config.model_type} model, expected an encoder such as BERT or Longformer, or a "
            f"decoder-only model ({', '.join(causal_families(form))})"
        )
    settings = {"optional": _NEW_HEAD, **head} if new_head else {}
    return load_weights(auto, directory, torch.float32, **settings), load_tokenizer(directory)


def causal_families(form: Form) -> list[str]:
    """The `model_type` of the decoder-only families that transformers has a classifier of this form for."""
    return sorted(_CLASSIFIERS[form].keys() & CAUSAL_FAMILIES.keys())


def _open_causal(directory: Path, config: Any, form: Form, new_head: bool) -> tuple[Any, Any]:
    """A decoder-only classifier and its tokenizer; both pad on the right, and with the same token.

    transformers reads the score of a whole answer at the last token that is not `config.pad_token_id`, so this names
    the tokenizer's padding token, and the end token where it has none. A new head gets no dropout, so that a step of a
    backbone without any is the same however it is cut into micro-batches.
    """
    auto, head = _FORMS[form]
    families = causal_families(form)
    if config.model_type not in families:
        raise ModelError(
            f"{directory}: transformers has no {auto.__name__[9:]} for {config.model_type} models, "
            f"which this kind of reward model needs (families that have it: {', '.join(families)}, and encoders)"
        )
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        raise ModelError(f"{directory}: this {config.model_type} model attends in both directions, expected causal")
    tokenizer = load_tokenizer(directory)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{directory}: the tokenizer has no end token to separate and end a reward model's input with")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if max(tokenizer.pad_token_id, tokenizer.eos_token_id) >= config.vocab_size:
        raise ModelError(
            f"{directory}: the model has {config.vocab_size} embeddings, and the tokenizer's padding or end token is "
            f"{max(tokenizer.pad_token_id, tokenizer.eos_token_id)}: they do not belong together"
        )
    tokenizer.padding_side = "right"
    config.pad_token_id = tokenizer.pad_token_id
    if new_head:
        for name, value in head.items():
            setattr(config, name, value)
        config.classifier_dropout = 0.0
    model = load_weights(auto, directory, torch.float32, _NEW_HEAD if new_head else None, config=config)
    embeddings = model.get_input_embeddings()
    embeddings.padding_idx = None  # no gradient would reach a separator that pads as well
    return model, tokenizer
