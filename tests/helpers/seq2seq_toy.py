"""Tiny random models of encoder–decoder families beside T5, with what sets each apart switched on.

Biases and soft caps of the head move log-probabilities by whole nats, windows are shorter than prompts and responses,
encoder and decoder of T5Gemma have different widths, embeddings are scaled, and BART's `<s>` is forced.
"""

from __future__ import annotations

from typing import Any

import torch
from families_toy import TINY
from rl_toy import prompts, responses, sharpen, tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from benchmarks.gpu.families import SETTINGS, with_images
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.policy import Seq2SeqPolicy

FAMILIES = ("bart", "mbart", "pegasus", "t5gemma", "t5gemma2")
POSITIONS = 40
LANGUAGE = 7
_BART = {"max_position_embeddings": POSITIONS, "scale_embedding": True, "bos_token_id": 3}
_GEMMA = {**SETTINGS["t5gemma"](TINY), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3}


def seq2seq_config(family: str, tied: bool | None = None, size: int | None = None, **changes: Any) -> Any:
    """A tiny configuration; `tied` says whether head and embeddings are one, by default as the family has it.

    `size` is the vocabulary's, by default that of the tiny tokenizer.
    """
    size = len(tokenizer()) if size is None else size
    top = {"pad_token_id": 0, "eos_token_id": 1, "vocab_size": size}
    if tied is not None:
        top["tie_word_embeddings"] = tied
    if family.startswith("t5gemma"):
        decoder = {**_GEMMA, "vocab_size": size, **changes}
        encoder: dict[str, Any] = {**decoder, "hidden_size": 24, "head_dim": 4} if family == "t5gemma" else decoder
        if family == "t5gemma2":
            encoder = with_images(encoder, width=8)
        return AutoConfig.for_model(family, encoder=encoder, decoder=decoder, **top)
    start = {"bart": 1, "mbart": LANGUAGE, "pegasus": 0}[family]
    settings = {**SETTINGS[family](TINY), **_BART, **top, "decoder_start_token_id": start}
    return AutoConfig.for_model(family, **{**settings, **changes})


def seq2seq_model(family: str, tied: bool | None = None, seed: int = 0, **changes: Any) -> Any:
    """A sharpened tiny model of a family, with settings of generation that no policy may follow."""
    torch.manual_seed(seed)
    model = sharpen(AutoModelForSeq2SeqLM.from_config(seq2seq_config(family, tied, **changes)), seed)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=2.0)
    model.generation_config.update(min_length=4, no_repeat_ngram_size=1, repetition_penalty=2.0, forced_eos_token_id=1)
    model.generation_config.forced_bos_token_id = 3 if family == "bart" else None
    return model


def seq2seq_policy(family: str, tied: bool | None = None, seed: int = 0, **changes: Any) -> Seq2SeqPolicy:
    """A policy around `seq2seq_model`."""
    return Seq2SeqPolicy(seq2seq_model(family, tied, seed, **changes), tokenizer()).eval()


def batch(samples: int = 3, count: int = 3, width: int = 7) -> tuple[list[Prompt], Tensor, Tensor, Tensor]:
    """Ragged prompts, the prompt of each row [R], and ragged responses with their mask [R, T]."""
    ids, mask = responses("t5", count * samples, width)
    return prompts("t5", count), torch.arange(count).repeat_interleave(samples), ids, mask


def before_response(family: str) -> list[int]:
    """What a decoder of `seq2seq_model` reads before a response, worked out by hand."""
    return {"bart": [1, 3], "mbart": [LANGUAGE], "pegasus": [0]}.get(family, [3])


def transformers_rows(model: Any, family: str, asked: list[Prompt], rows: Tensor, ids: Tensor) -> Tensor:
    """Logits [R, T, V] of each response token by the whole model, one unpadded row at a time."""
    start, found = before_response(family), []
    for prompt, row in zip([asked[i] for i in rows], ids, strict=True):
        inputs = torch.tensor([[*start, *row[:-1].tolist()]])
        logits = model(input_ids=torch.tensor([prompt.input_ids]), decoder_input_ids=inputs, use_cache=False).logits
        found.append(logits[0, len(start) - 1 :])
    return torch.stack(found)
