"""How many layers a model's configuration has, copies with other numbers of them, and what a probe reads."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.models.families.seq2seq import Stacks, seq2seq_family


@dataclass(frozen=True)
class Layers:
    """How many layers a shell has; `encoder` is not read for a causal model."""

    encoder: int
    decoder: int


@dataclass(frozen=True)
class ProbeBatch:
    """One prompt with its responses.

    Attributes:
        samples: N.
        prompt_tokens: L.
        response_tokens: T.
        pieces: tokens of each piece of the prompt that is encoded alone; empty: it is encoded whole.
    """

    samples: int
    prompt_tokens: int
    response_tokens: int
    pieces: tuple[int, ...] = ()


def with_layers(config: Any, layers: Layers | None) -> Any:
    """A copy of a model's configuration with other numbers of layers; None changes none."""
    config = copy.deepcopy(config)
    if layers is None:
        return config
    parts = [(config, "num_hidden_layers", layers.decoder)]
    if config.is_encoder_decoder:
        stacks = _stacks(config)
        parts = [(stacks.encoder, stacks.layers[0], layers.encoder), (stacks.decoder, stacks.layers[1], layers.decoder)]
    for part, name, number in parts:
        if getattr(part, "layer_types", None):
            part.layer_types = part.layer_types[:number]
        setattr(part, name, number)
    return config


def _stacks(config: Any) -> Stacks:
    return seq2seq_family(config).stacks(config)


def layers_of(config: Any) -> Layers:
    """How many layers a model of this configuration has."""
    if not config.is_encoder_decoder:
        return Layers(0, config.num_hidden_layers)
    stacks = _stacks(config)
    return Layers(getattr(stacks.encoder, stacks.layers[0]), getattr(stacks.decoder, stacks.layers[1]))


def decoder_config(config: Any) -> Any:
    """The part of a configuration that says how large the decoder is; the whole of it for a causal model."""
    return _stacks(config).decoder if config.is_encoder_decoder else config
