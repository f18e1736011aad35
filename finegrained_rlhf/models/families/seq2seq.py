"""Encoder–decoder families: what differs between them, declared in one table; the rest is transformers' own modules.

A family is known by its `model_type`. What must be declared of it: what stands behind `lm_head`, with which tokens its
decoder starts, how many positions it has, where its configuration keeps widths and layers, and whether its passes are
written here (`families/t5.py`). A prompt is encoded once whatever the family; its N responses read that encoding.

A family that is not in the table is refused when it is loaded, for the reason that `families/causal.py` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import on_device
from finegrained_rlhf.models.families import t5
from finegrained_rlhf.models.families.causal import softcapped_logits
from finegrained_rlhf.models.families.heads import Head


def biased_head(model: Any, product: Head, hidden: Tensor) -> Tensor:
    """Logits [..., V] of states [..., D]: `lm_head` and `final_logits_bias`, a buffer [1, V] (BART)."""
    return product(hidden) + model.final_logits_bias[0]


def capped_head(model: Any, product: Head, hidden: Tensor) -> Tensor:
    """Logits [..., V] of states [..., D]: `lm_head` under the decoder's `final_logit_softcapping` (T5Gemma)."""
    return softcapped_logits(product(hidden), model.config.decoder)


@dataclass(frozen=True)
class Stacks:
    """The parts of a configuration that say how large encoder and decoder are.

    Attributes:
        encoder: of the encoder; may be the whole configuration.
        decoder: of the decoder; may be the whole configuration.
        layers: what the encoder's part, and the decoder's, call their number of layers.
    """

    encoder: Any
    decoder: Any
    layers: tuple[str, str]


def t5_stacks(config: Any) -> Stacks:
    """One configuration for both, as T5 has it."""
    return Stacks(config, config, ("num_layers", "num_decoder_layers"))


def bart_stacks(config: Any) -> Stacks:
    """One configuration for both, as BART has it."""
    return Stacks(config, config, ("encoder_layers", "decoder_layers"))


def t5gemma_stacks(config: Any) -> Stacks:
    """A configuration for each; T5Gemma 2 has that of its text encoder one level deeper."""
    encoder = getattr(config.encoder, "text_config", config.encoder)
    return Stacks(encoder, config.decoder, ("num_hidden_layers", "num_hidden_layers"))


def declared_start(config: Any) -> int | None:
    """`decoder_start_token_id`: T5's padding, BART's end of sequence, mBART's language."""
    start: int | None = getattr(config, "decoder_start_token_id", None)
    return start


def decoder_bos(config: Any) -> int | None:
    """The decoder's `bos_token_id`, with which T5Gemma shifts labels to the right."""
    start: int | None = config.decoder.bos_token_id
    return start


@dataclass(frozen=True)
class Seq2SeqFamily:
    """What differs between encoder–decoder families.

    Attributes:
        name: for people.
        head: maps a model, the product of its `lm_head` and the decoder's last hidden states [..., D] to the model's
            logits [..., V].
        stacks: where the sizes of encoder and decoder stand in the configuration.
        start: the decoder's first token, by the configuration.
        positions: whether positions are a table of `max_position_embeddings` rows, which no text may exceed.
        unread: submodules that no text passes through (of images): they are saved as they were read, never trained.
        lora: linear layers that get an adapter where neither the user nor peft names any.
    """

    name: str
    head: Callable[[Any, Head, Tensor], Tensor]
    stacks: Callable[[Any], Stacks]
    start: Callable[[Any], int | None] = declared_start
    positions: bool = False
    unread: tuple[str, ...] = ()
    lora: tuple[str, ...] = ("q_proj", "v_proj")


_QV = ("q", "v")
SEQ2SEQ_FAMILIES = {
    "bart": Seq2SeqFamily("BART", biased_head, bart_stacks, positions=True),
    "longt5": Seq2SeqFamily("LongT5", t5.head, t5_stacks, lora=_QV),
    "mbart": Seq2SeqFamily("mBART, mBART-50", biased_head, bart_stacks, positions=True),
    "mt5": Seq2SeqFamily("mT5", t5.head, t5_stacks, lora=_QV),
    "pegasus": Seq2SeqFamily("Pegasus", biased_head, bart_stacks, positions=True),
    "t5": Seq2SeqFamily("T5, Flan-T5, T5 v1.1", t5.head, t5_stacks, lora=_QV),
    "t5gemma": Seq2SeqFamily("T5Gemma", capped_head, t5gemma_stacks, decoder_bos),
    "t5gemma2": Seq2SeqFamily(
        "T5Gemma 2 (text)",
        capped_head,
        t5gemma_stacks,
        decoder_bos,
        unread=("vision_tower", "multi_modal_projector"),
    ),
    "umt5": Seq2SeqFamily("UMT5", t5.head, t5_stacks, lora=_QV),
}
"""By `model_type`."""


def seq2seq_family(config: Any) -> Seq2SeqFamily:
    """The family of an encoder–decoder.

    Args:
        config: the model's configuration.

    Raises:
        ModelError: its head function and its start are not known here.
    """
    family = SEQ2SEQ_FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(sorted(SEQ2SEQ_FAMILIES))
        raise ModelError(
            f"encoder-decoders of type {config.model_type!r} are not known here: what stands behind their lm_head and "
            f"what their decoder starts with decide every log-probability and would have to be guessed (known: {known})"
        )
    return family


def start_ids(model: Any) -> tuple[int, ...]:
    """What the decoder reads before the first token of a response: its start token, then the forced one if any.

    `forced_bos_token_id` of the generation settings (mBART-50's language, BART's `<s>`) is no choice of the policy. So
    it is given, like the start token: it is neither sampled nor scored.

    Args:
        model: with its generation settings; those of the directory that it was read from.

    Raises:
        ModelError: neither the configuration nor the generation settings name one start token.
    """
    settings = model.generation_config
    start = seq2seq_family(model.config).start(model.config)
    start = settings.decoder_start_token_id if start is None else start
    if not isinstance(start, int):  # a list: one for each row of a batch
        raise ModelError(
            f"this {type(model).__name__} does not say with which one token its decoder starts: set "
            f"decoder_start_token_id in config.json (for mBART the id of the answer's language), which gives {start}"
        )
    forced = settings.forced_bos_token_id
    return (int(start),) if forced is None else (int(start), int(forced))


def freeze_unread(model: Any) -> None:
    """Let nothing train what no text passes through."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in seq2seq_family(model.config).unread:
            module.requires_grad_(False)


def decoder_width(config: Any) -> int:
    """Width D of the decoder's hidden states."""
    width: int = seq2seq_family(config).stacks(config).decoder.hidden_size
    return width


def decoder_vocabulary(config: Any) -> int:
    """Rows V of the decoder's embeddings."""
    size: int = seq2seq_family(config).stacks(config).decoder.vocab_size
    return size


def encode(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Encoder output [P, L, D] of prompts.

    Args:
        model: with an encoder.
        ids: int64 [P, L], right-padded.
        mask: int64 [P, L], 1 = real; or bool [P, L, L], True where a token (first) sees another.

    Raises:
        ModelError: a prompt has more tokens than the model has positions.
    """
    _check_positions(model, ids.shape[1], 0, "prompt", "max_prompt_tokens")
    if t5.computes(model):
        return t5.t5_encode(model, ids, mask)
    states: Tensor = model.get_encoder()(input_ids=ids, attention_mask=_added(model, mask)).last_hidden_state
    return states


def _added(model: Any, mask: Tensor) -> Tensor:
    """A mask as transformers takes it: one of tokens as it is, one of pairs [P, Q, K] as what is added to scores."""
    if mask.ndim == 2:
        return mask
    dtype = next(model.parameters()).dtype
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)[:, None]


def decoder_states(
    model: Any, states: Tensor, mask: Tensor, prompt_index: Tensor, response_ids: Tensor, start: tuple[int, ...]
) -> Tensor:
    """Last decoder hidden states [R, T, D] under teacher forcing, responses behind what the decoder starts with.

    Padding of responses needs no mask: it comes last, and real tokens look back only. All decoder inputs are visible,
    also a padding token that was sampled, as they are while a response is drawn.

    Args:
        model: with a decoder.
        states: float [P, L, E], the encoded prompts.
        mask: int64 [P, L].
        prompt_index: int64 [R], the prompt of each row.
        response_ids: int64 [R, T]. The last column is predicted, never read.
        start: the policy's `start_ids`.

    Raises:
        ModelError: a response has more tokens than the decoder has positions.
    """
    check_response_length(model, response_ids.shape[1], start)
    before = [torch.full_like(response_ids[:, :1], token) for token in start]
    inputs = torch.cat([*before, response_ids[:, :-1]], dim=1)
    return decode(model, states, mask, prompt_index, inputs)[:, len(start) - 1 :]


def decode(
    model: Any, states: Tensor, mask: Tensor, prompt_index: Tensor, inputs: Tensor, own: Tensor | None = None
) -> Tensor:
    """Last decoder hidden states [R, T, D] of decoder inputs.

    Args:
        model: with a decoder.
        states: float [P, L, E], the encoded prompts.
        mask: int64 [P, L]; or bool [R, T, L], True where an input sees a token of the prompt, each row with its own.
        prompt_index: int64 [R], the prompt of each row.
        inputs: int64 [R, T], start token first.
        own: bool [R, T, T], which earlier inputs each may see (T5's family); None for all.
    """
    if t5.computes(model):
        return t5.t5_decoder_states(model, states, mask, prompt_index, inputs, own)
    rows = on_device(prompt_index, states.device)
    hidden: Tensor = model.get_decoder()(
        input_ids=inputs,
        attention_mask=torch.ones_like(inputs) if own is None else _added(model, own.tril()),
        encoder_hidden_states=states[rows],
        encoder_attention_mask=_added(model, mask[rows]),
        use_cache=False,
    ).last_hidden_state
    return hidden


def check_response_length(model: Any, tokens: int, start: tuple[int, ...]) -> None:
    """Require that a decoder has positions for responses of so many tokens.

    Raises:
        ModelError: it has not.
    """
    _check_positions(model, tokens, len(start) - 1, "response", "max_new_tokens")


def _check_positions(model: Any, tokens: int, more: int, what: str, key: str) -> None:
    family = seq2seq_family(model.config)
    limit = model.config.max_position_embeddings if family.positions else None
    if limit is not None and tokens + more > limit:
        raise ModelError(
            f"the longest {what} takes {tokens + more} positions, and this {family.name} model has {limit} "
            f"(max_position_embeddings): set {key} to {limit - more} or less"
        )
