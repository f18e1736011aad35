"""Decoder-only families: what differs between them, declared in one table; the rest is transformers' own modules.

A family is known by its `model_type`. What must be declared of it: what stands behind `lm_head`, how its layers mask
attention, whether the N responses to a prompt may be packed behind it (`families/packed.py`), and whether a stepper of
ours decodes them (`rollout/steppers/causal.py`).

A family that is not in the table is refused when it is loaded. Comparing `lm_head` alone with `model.forward` on the
weights at hand would admit more models, but it would prove too little: a soft cap of 30 changes logits of size 1 by
0.0004 and those of a trained model by whole nats, so a model could pass at the start of a run and be wrong at its end.
The declaration says what the function is; the check at the start of each run (`training/checks.py`) compares it with
`model.forward` all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from finegrained_rlhf.core.errors import ModelError

PostHead = Callable[[Tensor, Any], Tensor]


def plain_logits(logits: Tensor, config: Any) -> Tensor:
    """Logits [..., V] as `lm_head` gives them."""
    return logits


def softcapped_logits(logits: Tensor, config: Any) -> Tensor:
    """C · tanh(z / c) for logits z [..., V] and c = `final_logit_softcapping`, fp32; z itself where c is None.

    Source: Gemma 2 (arXiv 2408.00118), section 2.
    """
    cap = config.final_logit_softcapping
    return logits if cap is None else (logits.float() / cap).tanh() * cap


def divided_logits(logits: Tensor, config: Any) -> Tensor:
    """Z / `logits_scaling` for logits z [..., V], fp32 (Granite)."""
    return logits.float() / config.logits_scaling


def multiplied_logits(logits: Tensor, config: Any) -> Tensor:
    """Z · `logit_scale` for logits z [..., V], fp32 (Cohere)."""
    return logits.float() * config.logit_scale


@dataclass(frozen=True)
class CausalFamily:
    """What differs between decoder-only families.

    Attributes:
        name: for people.
        head: maps the output of `lm_head` and the model's configuration to the model's logits.
        windows: where attention may be cut to the last `sliding_window` tokens: `none`, `all` layers (where the
            configuration sets a window), or by the layer's kind (`layers`: the model then takes a mask for each kind).
        packed: whether responses may be packed behind their prompt under a mask of ours. False where a layer counts
            distances in columns itself.
        stepped: whether its layers hand queries, keys and values, and all that they do to the scores, to the attention
            function that their configuration names, and ask the device nothing between two steps; then responses are
            decoded by `rollout/steppers/causal.py`.
        positions: whether positions are a table of `max_position_embeddings` rows, which prompt and response together
            may not exceed.
        llama_layers: whether a layer is Llama's: a norm, queries, keys and values turned by halves, a norm, and a gated
            feed-forward part; queries and keys may have norms of their own.
        lora: linear layers that get an adapter where neither the user nor peft names any.
    """

    name: str
    head: PostHead = plain_logits
    windows: Literal["none", "all", "layers"] = "none"
    packed: bool = True
    stepped: bool = True
    positions: bool = False
    llama_layers: bool = False
    lora: tuple[str, ...] = ("q_proj", "v_proj")


CAUSAL_FAMILIES = {
    "cohere": CausalFamily("Cohere (Command R)", multiplied_logits),
    "cohere2": CausalFamily("Cohere 2 (Command R7B)", multiplied_logits, "layers"),
    "gemma": CausalFamily("Gemma"),
    "gemma2": CausalFamily("Gemma 2", softcapped_logits, "layers"),
    "gemma3_text": CausalFamily("Gemma 3 (text)", softcapped_logits, "layers"),
    "gpt2": CausalFamily("GPT-2", positions=True, lora=("c_attn",)),
    # local attention by a buffer of its own, in columns
    "gpt_neo": CausalFamily("GPT-Neo", packed=False, stepped=False, positions=True),
    "gpt_neox": CausalFamily("GPT-NeoX (Pythia)", lora=("query_key_value",)),
    "granite": CausalFamily("Granite", divided_logits),
    "llama": CausalFamily("Llama (SmolLM, SmolLM2)", llama_layers=True),
    "mistral": CausalFamily("Mistral", windows="all", llama_layers=True),
    "olmo2": CausalFamily("OLMo 2"),
    "olmo3": CausalFamily("OLMo 3", windows="layers"),
    "phi3": CausalFamily("Phi 3", windows="all", lora=("qkv_proj",)),
    "qwen2": CausalFamily("Qwen2, Qwen2.5", windows="layers", llama_layers=True),
    "qwen3": CausalFamily("Qwen3", windows="layers", llama_layers=True),
    # asks the device which experts are needed
    "qwen3_moe": CausalFamily("Qwen3-MoE", windows="all", stepped=False),
    "smollm3": CausalFamily("SmolLM3", windows="layers"),
}
"""By `model_type`."""


def causal_family(config: Any) -> CausalFamily:
    """The family of a decoder-only model.

    Args:
        config: the model's configuration.

    Raises:
        ModelError: its head function is not known here, or its attention looks ahead.
    """
    family = CAUSAL_FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(sorted(CAUSAL_FAMILIES))
        raise ModelError(
            f"models of type {config.model_type!r} are not known here: what stands behind their lm_head decides every "
            f"log-probability, and it would have to be guessed (known: {known})"
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError(f"this {family.name} model attends in both directions: it is no language model to train")
    return family


def position_rows(config: Any) -> int | None:
    """Rows of a decoder-only model's table of positions; None where its family has none (rotary positions)."""
    family = CAUSAL_FAMILIES.get(config.model_type)
    return int(config.max_position_embeddings) if family is not None and family.positions else None


def check_columns(config: Any, columns: int) -> None:
    """Require that a padded batch of so many columns fits a model whose attention is masked by columns (GPT-Neo).

    Raises:
        ModelError: it does not, though each row by itself may.
    """
    rows, family = position_rows(config), CAUSAL_FAMILIES.get(config.model_type)
    if rows is not None and family is not None and not family.packed and columns > rows:
        raise ModelError(
            f"the longest prompt and the longest response of a batch have {columns} tokens together, but {family.name} "
            f"masks by columns and has {rows} (max_position_embeddings): shorten them, or take fewer rows at once"
        )


def check_positions(config: Any, longest: int, what: str = "model") -> None:
    """Require a row in a model's table of positions, if it has one, for each token of a prompt with its response.

    Args:
        config: the model's configuration; of an encoder–decoder nothing is required here.
        longest: tokens of the longest prompt with its response.
        what: what the error calls the model.

    Raises:
        ModelError: there are fewer rows.
    """
    rows = position_rows(config)
    if rows is not None and longest > rows:
        raise ModelError(
            f"the longest prompt and its response have {longest} tokens together, but this {config.model_type} {what} "
            f"has {rows} positions (max_position_embeddings): shorten one of them"
        )
