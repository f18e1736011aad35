"""Policies: encoder–decoders and causal language models behind one interface.

A policy encodes prompts once and scores any number of responses to each. It knows no reward, no algorithm and no
sampling loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt, Sample, on_device, pad_rows
from finegrained_rlhf.models.dropout import own_rates
from finegrained_rlhf.models.families import seq2seq, t5
from finegrained_rlhf.models.families.attention import exact_attention
from finegrained_rlhf.models.families.causal import causal_family
from finegrained_rlhf.models.families.heads import Head, HeadOfPass
from finegrained_rlhf.models.families.packed import causal_states, pass_tokens
from finegrained_rlhf.models.families.pieces import cut_in_pieces, encode_in_pieces
from finegrained_rlhf.models.families.rows import (
    Like,
    causal_answer_states,
    may_share_rows,
    t5_answer_states,
    t5_prompt_states,
)
from finegrained_rlhf.models.logprobs import TokenLogprobs, token_logprobs
from finegrained_rlhf.runtime.sharding.shards import computed
from finegrained_rlhf.text.chat import PromptConfig


@dataclass(frozen=True)
class PromptMemory:
    """What a policy keeps of a batch of prompts.

    Attributes:
        prompts: the P prompts.
        prompt_ids: int64 [P, L], right-padded.
        prompt_mask: int64 [P, L].
        states: float [P, L, D] encoder output, or None for causal models.
    """

    prompts: Sequence[Prompt]
    prompt_ids: Tensor
    prompt_mask: Tensor
    states: Tensor | None

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.lengths, default=0)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(prompt.input_ids) for prompt in self.prompts]


def encoded_once(counts: Sequence[int], prompt_tokens: int, response_tokens: int) -> int:
    """Tokens of prompts that are read once each, with so many responses, padding included."""
    return len(counts) * prompt_tokens + sum(counts) * response_tokens


class Policy(nn.Module, ABC):
    """A language model with its tokenizer.

    Attributes:
        model: the Hugging Face model (with LoRA layers inside where `adapter` is set).
        tokenizer: its tokenizer.
        adapter: the peft wrapper around `model`, or None.
        scored: None scores the plain softmax; a `Sample` scores the distribution that sampling uses.
        frozen_in_bf16: whether linear layers that are not trained are stored in bf16: the reference, LoRA's base.
        prompt: chat template and system message that it was trained with; saved beside the weights.
    """

    adapter: Any

    def __init__(self, model: Any, tokenizer: Any, adapter: Any = None) -> None:
        super().__init__()
        exact_attention(model)
        self.model = model
        self.tokenizer = tokenizer
        # Not a submodule: the wrapper holds the same parameters under other names.
        object.__setattr__(self, "adapter", adapter)
        self.scored: Sample | None = None
        self.prompt = PromptConfig()
        self.frozen_in_bf16 = False
        self.eos_ids = _as_ids(model.generation_config.eos_token_id, tokenizer.eos_token_id)
        if not self.eos_ids:
            raise ModelError(
                "the tokenizer has no end-of-sequence token (eos_token in tokenizer_config.json), and "
                "generation_config.json names none (eos_token_id): a policy could not end an answer"
            )
        stand_in = self.eos_ids[0] if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self.pad_id: int = int(stand_in if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
        _require_rows(model, {"padding token": self.pad_id, "end-of-sequence token": self.eos_ids[0]})

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    def end_turns_with(self, token: int | None) -> None:
        """Let this id end an answer beside those that do already, and come first; None changes nothing."""
        if token is not None:
            self.eos_ids = tuple(dict.fromkeys((token, *self.eos_ids)))
            self.model.generation_config.eos_token_id = list(self.eos_ids)

    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """Encode each prompt once. Gradients flow unless the caller switched them off."""
        ids, mask = self.pad_prompts(prompts)
        with self._recomputing():
            return PromptMemory(prompts, ids, mask, computed(self.model, partial(self._encode, prompts), ids, mask))

    def pad_prompts(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """Ids and mask of prompts on the model's device, int64 [P, L], right-padded."""
        return pad_rows([prompt.input_ids for prompt in prompts], self.pad_id, self.device, self.multiple)

    @property
    def multiple(self) -> int:
        """Of how many tokens the padded length of prompts is a multiple."""
        return 1

    def use_gradient_checkpointing(self) -> None:
        """Keep only the inputs of each layer for the backward pass and compute the rest again."""
        settings = {"use_reentrant": False}
        if hasattr(self.model, "activation_checkpointing_enable"):  # its name since transformers 5.20
            self.model.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
        else:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
        # A hook on the embeddings, which only reentrant checkpointing needs; with it no stepper of ours would decode.
        self.model.disable_input_require_grads()

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Switch gradient checkpointing on in the layers that have it, where a backward pass will follow.

        transformers does so only for layers in training mode. Their own flag is set, not their children's, so dropout
        stays off and generation keeps its cache. Rates that a layer keeps as numbers (BART) are 0 meanwhile.
        """
        layers = [
            layer
            for layer in self.model.modules()
            if isinstance(layer, GradientCheckpointingLayer) and layer.gradient_checkpointing and not layer.training
        ]
        before = [(layer, {"training": False, **own_rates(layer)}) for layer in layers if torch.is_grad_enabled()]
        for layer, kept in before:
            for name in kept:
                setattr(layer, name, True if name == "training" else 0.0)
        try:
            yield
        finally:
            for layer, kept in before:
                for name, value in kept.items():
                    setattr(layer, name, value)

    @abstractmethod
    def _encode(self, prompts: Sequence[Prompt], ids: Tensor, mask: Tensor) -> Tensor | None:
        """Encoder output [P, L, D], or None."""

    def pass_tokens(self, counts: Sequence[int], prompt_tokens: int, response_tokens: int) -> int:
        """Tokens that a pass over a micro-batch computes, padding included.

        Args:
            counts: responses to each of the P prompts.
            prompt_tokens: of the longest prompt.
            response_tokens: of the longest response.
        """
        return encoded_once(counts, prompt_tokens, response_tokens)

    @abstractmethod
    def hidden(self, memory: PromptMemory, prompt_index: Tensor, response_ids: Tensor) -> Tensor:
        """The state that predicts each response token.

        Args:
            memory: P encoded prompts.
            prompt_index: int64 [R], the prompt of each row.
            response_ids: int64 [R, T], right-padded.

        Returns:
            float [R, T, D], meaningful at real tokens.
        """

    @property
    @abstractmethod
    def takes_rows(self) -> bool:
        """Whether examples may share rows in training: whether the model's family computes each as it would alone."""

    def answer_states(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[int]], in_rows: bool) -> Tensor:
        """The state that predicts each token of one answer to each prompt, float [n, D], answer by answer.

        Args:
            prompts: N prompts.
            answers: token ids of N answers, at least one each.
            in_rows: lay examples one behind the other where the model `takes_rows`; else each is padded to the longest.
        """
        if in_rows and self.takes_rows:
            with self._recomputing():
                return self._in_rows(prompts, answers)
        ids, mask = pad_rows(answers, self.pad_id)
        places = on_device(mask.flatten().nonzero().squeeze(1), self.device)
        states = self.hidden(self.encode(prompts), torch.arange(len(answers)), on_device(ids, self.device))
        return states.flatten(0, 1).index_select(0, places)

    @abstractmethod
    def _in_rows(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]) -> Tensor:
        """`answer_states` of examples that share rows."""

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of states [n, D]."""
        return self.head_of_pass()(hidden)

    def head_of_pass(self) -> Head:
        """`head` for all calls of one pass and its backward pass, with the weights of now; see `HeadOfPass`."""
        return partial(self._logits, HeadOfPass(self.model.lm_head))

    @abstractmethod
    def _logits(self, product: Head, hidden: Tensor) -> Tensor:
        """Logits [n, V] of states [n, D], by the product of states and `lm_head`."""

    def logprobs(
        self,
        memory: PromptMemory,
        prompt_index: Tensor,
        response_ids: Tensor,
        response_mask: Tensor,
        *,
        entropy: bool = False,
        places: Tensor | None = None,
    ) -> TokenLogprobs:
        """Teacher-forced log-probabilities of responses, with their entropy if asked (see `token_logprobs`).

        Args:
            memory: P encoded prompts.
            prompt_index: int64 [R], the prompt of each row.
            response_ids: int64 [R, T], right-padded.
            response_mask: int64 [R, T], 1 = real.
            entropy: False leaves the entropy at 0.
            places: see `token_logprobs`.

        Returns:
            fp32 [R, T] each, 0 at padding.
        """
        return token_logprobs(
            self.hidden(memory, prompt_index, response_ids),
            response_ids,
            response_mask,
            self.head_of_pass(),
            scored=self.scored,
            entropy=entropy,
            places=places,
        )


def _require_rows(model: Any, tokens: Mapping[str, int]) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    for name, token in tokens.items():
        if not 0 <= token < rows:
            raise ModelError(
                f"the {name} has id {token}, but the model has {rows} embeddings: resize them to the tokenizer, or "
                "name another token in tokenizer_config.json"
            )


def _as_ids(*sources: int | Sequence[int] | None) -> tuple[int, ...]:
    ids: list[int] = []
    for source in sources:
        if source is not None:
            ids.extend([source] if isinstance(source, int) else source)
    return tuple(dict.fromkeys(ids))


class Seq2SeqPolicy(Policy):
    """An encoder–decoder policy of a family that `families/seq2seq.py` knows.

    Attributes:
        family: what differs from other families; `head` is the model's whole head function.
        start_ids: what the decoder reads before the first token of a response.
    """

    def __init__(self, model: Any, tokenizer: Any, adapter: Any = None) -> None:
        self.family = seq2seq.seq2seq_family(model.config)
        if not hasattr(model, "lm_head"):
            raise ModelError(f"expected an encoder-decoder with a language-model head, got {type(model).__name__}")
        seq2seq.freeze_unread(model)
        super().__init__(model, tokenizer, adapter)
        self.start_ids = seq2seq.start_ids(model)
        _require_rows(model, {"token that the decoder starts with": max(self.start_ids)})

    @property
    def multiple(self) -> int:
        """See `Policy.multiple`: on CUDA, T5's attention copies its bias in every layer where it is not aligned."""
        return t5.ALIGNED if self.device.type == "cuda" and t5.is_t5(self.model) else 1

    def _encode(self, prompts: Sequence[Prompt], ids: Tensor, mask: Tensor) -> Tensor:
        return encode_in_pieces(self.model, prompts, ids, mask)

    def hidden(self, memory: PromptMemory, prompt_index: Tensor, response_ids: Tensor) -> Tensor:
        """States [R, T, D]; see `Policy.hidden`."""
        assert memory.states is not None
        states, mask = memory.states, memory.prompt_mask
        with self._recomputing():
            rest = mask, prompt_index, response_ids, self.start_ids
            return computed(self.model, partial(seq2seq.decoder_states, self.model, states, *rest))

    @property
    def takes_rows(self) -> bool:
        """See `Policy.takes_rows`: T5's family does."""
        return t5.is_t5(self.model)

    def _in_rows(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]) -> Tensor:
        model, like = self.model, Like(self.device, self.multiple)
        pieces = cut_in_pieces(prompts, 0)[0]
        states = computed(model, lambda: t5_prompt_states(model, pieces, self.pad_id, like))
        rest = [len(prompt.input_ids) for prompt in prompts], answers, self.start_ids, self.pad_id, like
        return computed(model, partial(t5_answer_states, model, states, *rest))

    def _logits(self, product: Head, hidden: Tensor) -> Tensor:
        return self.family.head(self.model, product, hidden)


def _require_tokens(prompts: Sequence[Prompt]) -> None:
    if not all(len(prompt.input_ids) for prompt in prompts):
        raise ModelError("a causal policy needs at least one prompt token")


class CausalPolicy(Policy):
    """A decoder-only policy of a family that `families/causal.py` knows: a `lm_head` over one backbone.

    Attributes:
        family: what differs from other families; `head` is the model's whole head function.
    """

    def __init__(self, model: Any, tokenizer: Any, adapter: Any = None) -> None:
        head = model.get_output_embeddings()
        if head is None or head is not getattr(model, "lm_head", None):
            raise ModelError(f"expected a policy, a causal language model with one lm_head, got {type(model).__name__}")
        self.family = causal_family(model.config)
        super().__init__(model, tokenizer, adapter)

    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """The prompts' ids; there is nothing to encode. Raises ModelError where a prompt has no token."""
        _require_tokens(prompts)
        return super().encode(prompts)

    def _encode(self, prompts: Sequence[Prompt], ids: Tensor, mask: Tensor) -> None:
        return None

    def pass_tokens(self, counts: Sequence[int], prompt_tokens: int, response_tokens: int) -> int:
        """See `Policy.pass_tokens`: a prompt counts once for each row that it is computed in."""
        backbone, device = self.model.base_model, self.device.type
        return pass_tokens(backbone, device, counts, prompt_tokens, response_tokens)

    def hidden(self, memory: PromptMemory, prompt_index: Tensor, response_ids: Tensor) -> Tensor:
        """States [R, T, D]; see `Policy.hidden`."""
        with self._recomputing():
            inputs = memory.prompt_ids, memory.prompt_mask, prompt_index, response_ids, self.pad_id, memory.lengths
            return computed(self.model, partial(causal_states, self.model.base_model, *inputs))

    @property
    def takes_rows(self) -> bool:
        """See `Policy.takes_rows`: those of families whose responses may be packed do."""
        return may_share_rows(self.model.base_model)

    def _in_rows(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[int]]) -> Tensor:
        _require_tokens(prompts)
        texts = [prompt.input_ids for prompt in prompts], answers
        return computed(self.model, partial(causal_answer_states, self.model.base_model, *texts, self.pad_id))

    def _logits(self, product: Head, hidden: Tensor) -> Tensor:
        return self.family.head(product(hidden), self.model.config)
