"""What a step of continuous batching draws: the token that each request's own noise asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from finegrained_rlhf.core.records import Decoding, Greedy, Sample
from finegrained_rlhf.models.distribution import draw
from finegrained_rlhf.models.logprobs import chosen_logprobs

_CHILD = "__child#"
"""What transformers puts between the name of a request and the number of one forked from it."""


def request_name(prompt: int) -> str:
    """The name of the request for a prompt's first sample; transformers names the others after it."""
    return str(prompt)


def request_row(name: str, samples: int) -> int:
    """The row of a request: prompt · samples + sample.

    Args:
        name: as transformers gives it back, `prompt` or `prompt__child#i` for sample i + 1.
        samples: N a prompt.
    """
    prompt, _, child = name.partition(_CHILD)
    return int(prompt) * samples + (int(child) + 1 if child else 0)


class NamedDraws(ContinuousBatchingLogitsProcessor):
    """Leaves the drawn token as the only finite logit, and keeps its log-probability.

    transformers gives a processor one int32 a request and step. Here it is the place of the token in the table [R, T]
    of the rollout: noise is read there, the log-probability is written there. Rows that predict nothing (part of a long
    prompt) have a spare place behind the table.

    Args:
        decodings: as in `RolloutEngine.decode`.
        which: int64 [R], the decoding of each row.
        noise: fp64 [R, T] in (0, 1).
        prompt_lengths: tokens of each of the P prompts.
        scored: the distribution that log-probabilities are those of; None for the plain softmax.

    Attributes:
        logprobs: fp32 [R · T + 1], of what has been drawn; 0 elsewhere.
    """

    supported_kwargs: dict[str, type] = {}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(
        self,
        decodings: Sequence[Decoding],
        which: Tensor,
        noise: Tensor,
        prompt_lengths: Sequence[int],
        scored: Sample | None,
    ) -> None:
        (rows, self._limit), device = noise.shape, which.device
        self._decodings, self._scored, self._lengths = decodings, scored, prompt_lengths
        self._samples = rows // max(len(prompt_lengths), 1)
        self._which = torch.nn.functional.pad(which.repeat_interleave(self._limit), (0, 1))
        self._noise = torch.nn.functional.pad(noise.flatten(), (0, 1), value=0.5).to(device)
        self.logprobs = torch.zeros(rows * self._limit + 1, device=device)

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Fill int32 [n] with the spare place."""
        int32_tensor.fill_(self.logprobs.shape[0] - 1)

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        """The places int32 [n] of the tokens that these requests are about to get.

        A request's offset is how many of its tokens will have been read, so the first response token has the prompt's
        length; that also holds where transformers reads a request again after it had to free its cache.
        """
        places = []
        for request in requests_with_new_token:
            row = request_row(request.state.request_id, self._samples)
            position = request.state.position_offset - self._lengths[row // self._samples]
            places.append(row * self._limit + position)
        return torch.tensor(places, dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Logits [n, V] with the drawn token alone finite.

        Args:
            scores: fp32 [n, V], the model's logits.
            tensor_arg: int32 [≥ n], places.
        """
        places = tensor_arg[: scores.shape[0]].long()
        tokens = self._choose(scores, places)
        self.logprobs[places] = chosen_logprobs(scores, tokens, self._scored)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens.unsqueeze(1), 0.0)

    def _choose(self, scores: Tensor, places: Tensor) -> Tensor:
        tokens = torch.empty_like(places)
        which = self._which[places]
        for number, decoding in enumerate(self._decodings):
            rows = torch.nonzero(which == number).squeeze(1)
            if not rows.numel():
                continue
            asked = scores[rows]
            if isinstance(decoding, Greedy):
                tokens[rows] = asked.argmax(dim=-1)
            else:
                tokens[rows] = draw(asked, decoding, self._noise[places[rows]])
        return tokens
