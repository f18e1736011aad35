"""A rollout engine over transformers' continuous batching: paged keys and values, requests scheduled token by token.

A step draws the token that each request's own noise asks for. The prompt of N samples is read once: its request is
forked before its last token.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    ContinuousBatchingConfig,
    GenerationConfig,
    LogitsProcessorList,
)
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import BackgroundThreadStatus
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.records import Decoding, Greedy, Sample
from finegrained_rlhf.models.distribution import draw
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES, check_positions
from finegrained_rlhf.models.logprobs import drawn_logprobs
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory
from finegrained_rlhf.rollout.assembly import row_order
from finegrained_rlhf.rollout.engine import PolicyEngine
from finegrained_rlhf.rollout.noise import row_noise
from finegrained_rlhf.rollout.steppers.causal import looks_back_only, rotates_rows_alike

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
        support: int [R · T + 1, K] beside them, where the scored distribution is truncated.
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
        self.support: Tensor | None = None

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
        self.logprobs[places], support = drawn_logprobs(scores, tokens, self._scored)
        if support is not None:
            if self.support is None:
                self.support = support.new_zeros(len(self.logprobs), support.shape[1])
            self.support[places] = support
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


_LOGGER = logging.getLogger("ContinuousBatchingLogger")
_PAGE = 32
_READ_AT_ONCE = 1024
"""Tokens of prompts in one batch: its attention mask has as many rows, and a column for every token of the cache."""


_SDPA_OVER_PAGES = "finegrained_sdpa_over_pages"
"""The name of the attention function in transformers' registries."""


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """SDPA of transformers in the dtype of the pages; under autocast queries, keys and values come in two others.

    Args:
        module: the attention layer.
        query: float [1, H, q, d].
        key: float [1, K/V heads, q, d].
        value: float [1, K/V heads, q, d].
        attention_mask: added, [1, 1, q, keys in pages and q].
        **options: as transformers calls attention functions, `cache` among them.
    """
    dtype = options["cache"].dtype
    return sdpa_attention_forward(module, query.to(dtype), key.to(dtype), value.to(dtype), attention_mask, **options)


AttentionInterface.register(_SDPA_OVER_PAGES, _attend)
AttentionMaskInterface.register(_SDPA_OVER_PAGES, sdpa_mask)


def check_continuous(policy: Policy) -> None:
    """Require a policy whose function continuous batching computes.

    transformers puts the tokens of all requests into one row under one mask. So attention must be an SDPA that sees
    what the mask and the scale say and nothing else, and the rotary angle of a token must be that of its position
    alone.

    Raises:
        ConfigError: an encoder–decoder, or attention or positions of another kind.
    """
    name = type(policy.model).__name__
    refused = f"rollout.engine=continuous cannot draw from {name}: "
    if not isinstance(policy, CausalPolicy):
        raise ConfigError(refused + "continuous batching is for decoder-only models; take engine=auto")
    config = policy.model.config
    if not getattr(policy.model, "_supports_sdpa", False) or config._attn_implementation == "eager":
        raise ConfigError(refused + "its attention is not transformers' SDPA, which reads the pages; take engine=auto")
    if CAUSAL_FAMILIES[config.model_type].windows == "all" and len({*(getattr(config, "layer_types", None) or ())}) > 1:
        raise ConfigError(refused + "its layers have one mask, and its layer_types name several; take engine=auto")
    if not looks_back_only(config) or not rotates_rows_alike(config):
        raise ConfigError(
            refused + "its attention looks ahead, or its rotary positions depend on the longest row; take engine=auto"
        )


class ContinuousEngine(PolicyEngine):
    """Draws responses by continuous batching; see `RolloutEngine` for the contract.

    The noise is that of the other engines, and log-probabilities are those of the steps that drew. The cache is sized
    by the rows of a call and never by the memory that happens to be free, so that a resumed run schedules as the first.

    Args:
        policy: decoder-only; its model generates.

    Raises:
        ConfigError: continuous batching does not compute this policy's function.
    """

    def __init__(self, policy: Policy) -> None:
        check_continuous(policy)
        super().__init__(policy)

    def _draw(
        self, memory: PromptMemory, decodings: Sequence[Decoding], limit: int, seed: int, step: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        check_positions(self.policy.model.config, memory.longest + limit)
        device = self.policy.device
        _, _, which = row_order(len(memory.prompts), decodings, device)
        noise = torch.from_numpy(row_noise(memory.prompts, decodings, limit, seed, step))
        lengths = [len(prompt.input_ids) for prompt in memory.prompts]
        draws = NamedDraws(decodings, which, noise, lengths, self.policy.scored)
        ids = torch.full((which.shape[0], limit), self.policy.eos_ids[0], dtype=torch.long)
        if memory.prompts:
            for row, tokens in self._run(memory, draws, sum(d.samples for d in decodings), limit):
                ids[row, : len(tokens)] = torch.tensor(tokens)
        support = None if draws.support is None else draws.support[:-1].unflatten(0, (-1, limit))
        return ids.to(device), draws.logprobs[:-1].view(-1, limit), support

    def _run(
        self, memory: PromptMemory, draws: NamedDraws, samples: int, limit: int
    ) -> Iterator[tuple[int, list[int]]]:
        """Row and response ids of every request."""
        policy = self.policy
        eos = list(policy.eos_ids)
        with _as_it_was(policy.model, policy.device):
            settings = GenerationConfig(max_new_tokens=limit, do_sample=False, eos_token_id=eos)
            manager = policy.model.init_continuous_batching(settings, _batching(memory, samples, limit))
            manager.logit_processor = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([draws]))
            manager.logit_processor.tensors_required = 1
            manager.num_return_sequences = samples
            manager.warmup()  # makes cache and masks, for which transformers wants to see its own attention's name
            policy.model.config._attn_implementation = _SDPA_OVER_PAGES
            for number, prompt in enumerate(memory.prompts):
                name = request_name(number)
                manager.add_request(list(prompt.input_ids), name, max_new_tokens=limit, eos_token_id=eos)
            # The manager's loop runs here and not in its thread, which would know nothing of the caller's autocast.
            manager.background_thread_status.request_stop(BackgroundThreadStatus.FLUSH_AND_STOP, 0)
            manager._run_generation_loop()
            outputs = list(_drained(manager.output_router.output_queue))
            manager.batch_processor = None
        failed = [output.error for output in outputs if output.error is not None]
        if failed or len(outputs) != len(memory.prompts) * samples:
            reason = failed[0] if failed else f"{len(outputs)} of {len(memory.prompts) * samples} responses came back"
            raise ModelError(f"continuous batching of {type(policy.model).__name__} failed: {reason}")
        for output in outputs:
            yield request_row(output.request_id, samples), output.generated_tokens


def _batching(memory: PromptMemory, samples: int, limit: int) -> ContinuousBatchingConfig:
    """Pages for all rows at once, and nothing that looks at the machine."""
    lengths = [len(prompt.input_ids) for prompt in memory.prompts]
    rows = len(lengths) * samples
    pages = samples * sum(ceil((length + limit) / _PAGE) + 1 for length in lengths)
    return ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=pages,
        max_batch_tokens=max(rows, min(sum(lengths), _READ_AT_ONCE)),
        max_requests_per_batch=rows,
        max_blocks_per_request=0,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
        safety_margin=0.0,
        seed=0,
        disable_nccl_graph_mixing=False,
    )


@contextmanager
def _as_it_was(model: Any, device: torch.device) -> Iterator[None]:
    """Give the model plain SDPA for the while, and put back its attention, its modes and torch's generators.

    A manager switches the model to evaluation, seeds torch, and tells of its loop in five lines a rollout by a logger
    of its own; warnings and errors still come.
    """
    config, training = model.config, [module for module in model.modules() if module.training]
    attention, level = config._attn_implementation, _LOGGER.level
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        config._attn_implementation = "sdpa"
        _LOGGER.setLevel(logging.WARNING)
        try:
            yield
        finally:
            config._attn_implementation = attention
            _LOGGER.setLevel(level)
            for module in training:
                module.training = True


def _drained(outputs: queue.Queue[Any]) -> Iterator[Any]:
    while not outputs.empty():
        yield outputs.get_nowait()
