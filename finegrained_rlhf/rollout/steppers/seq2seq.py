"""Encoder–decoder policies of any family one token at a time, by the decoder's own modules over its own cache.

Prompts come encoded, once each; their states are repeated for the rows, whose cross-attention keys and values the first
step keeps. T5's family has a faster stepper (`steppers/t5.py`). What a family declares is read from
`models/families/seq2seq.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.models.families.seq2seq import check_response_length
from finegrained_rlhf.models.policy import Policy, PromptMemory, Seq2SeqPolicy


def supports_seq2seq(policy: Policy) -> bool:
    """True for encoder–decoders in evaluation mode."""
    return isinstance(policy, Seq2SeqPolicy) and not policy.model.training


class Seq2SeqStepper:
    """See `Stepper`. The first step feeds all that the decoder starts with.

    Args:
        policy: one that `supports_seq2seq`; its decoder runs, adapters and hooks included.
        memory: P encoded prompts.
        samples: N rows a prompt.
        max_new_tokens: longest response in tokens.

    Raises:
        ModelError: the decoder has no positions for responses of that length.
    """

    def __init__(self, policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> None:
        assert isinstance(policy, Seq2SeqPolicy) and memory.states is not None
        check_response_length(policy.model, max_new_tokens, policy.start_ids)
        self._policy, self._cache = policy, None
        self._head = policy.head_of_pass()
        self._states = memory.states.repeat_interleave(samples, dim=0)
        self._mask = memory.prompt_mask.repeat_interleave(samples, dim=0)
        start = memory.prompt_ids.new_tensor(policy.start_ids).expand(self._states.shape[0], -1)
        self._before, self.first_tokens = start[:, :-1], start[:, -1]

    @torch.no_grad()
    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`: tokens int64 [P·N] → float [P·N, V]; the cache knows the position."""
        ids = tokens.unsqueeze(1)
        output: Any = self._policy.model.get_decoder()(
            input_ids=torch.cat([self._before, ids], dim=1) if self._cache is None else ids,
            encoder_hidden_states=self._states,
            encoder_attention_mask=self._mask,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache = output.past_key_values
        return self._head(output.last_hidden_state[:, -1])

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`: prompts int64 [P'] and rows int64 [P'·N'] that stay."""
        self.first_tokens, self._before = self.first_tokens[rows], self._before[rows]
        self._states, self._mask = self._states[rows], self._mask[rows]
        if self._cache is not None:
            self._cache.self_attention_cache.batch_select_indices(rows)
            self._cache.cross_attention_cache.batch_select_indices(rows)
