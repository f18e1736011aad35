"""Policies whose responses can all be enumerated: a T5 of five tokens, and a table of logits."""

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


class TablePolicy:
    """Three tokens, 0, 1 and the end of sequence 2: logits by place and by the token before.

    Attributes:
        logits: fp64 [longest, 3, 4]; the last column is of the first place, which has no token before it.
        responses: all that can be drawn: up to the end of sequence, or `longest` tokens.
    """

    end = 2

    def __init__(self, longest: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(longest, 3, 4, generator=generator, dtype=torch.float64)
        self.responses = self._all(longest)

    def _all(self, longest: int, begun: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
        if begun and (begun[-1] == self.end or len(begun) == longest):
            return [begun]
        return [whole for token in range(3) for whole in self._all(longest, (*begun, token))]

    def logprobs(self, response: tuple[int, ...], logits: Tensor, temperature: float = 1.0) -> Tensor:
        """fp64 [T], of each token of a response under the softmax of `logits`, divided by the temperature."""
        before = (3, *response[:-1])
        rows = torch.stack([logits[place, :, token] for place, token in enumerate(before)])
        chosen = torch.tensor(response)
        return (rows / temperature).log_softmax(dim=1)[torch.arange(len(response)), chosen]
