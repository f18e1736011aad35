"""A policy whose responses can all be enumerated."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from finegrained_rlhf.models.policy import Policy, Seq2SeqPolicy

PAD, EOS, WORDS = 0, 1, (2, 3, 4)


class _NoTokenizer:
    pad_token_id, eos_token_id = PAD, EOS


def five_token_policy() -> Policy:
    """A T5 whose vocabulary is pad, end of sequence and three words, far from uniform."""
    torch.manual_seed(4)
    config = T5Config(
        vocab_size=5, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, dropout_rate=0.0,
        pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, dtype=torch.float64))
    return Seq2SeqPolicy(model, _NoTokenizer()).eval()


def every_response(length: int) -> list[tuple[int, ...]]:
    """All that decoding can draw: it ends with the first EOS, or is cut at `length`; pad is a token as any other."""
    tokens = (PAD, *WORDS)
    ended = [(*head, EOS) for n in range(length) for head in itertools.product(tokens, repeat=n)]
    return ended + list(itertools.product(tokens, repeat=length))


def padded(responses: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, responses))
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in responses])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in responses])
    return ids, mask
