"""How probable a language model finds each allowed answer, behind examples that several questions share."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch

from finegrained_lab.experiments.personalization.choices.items import ChoicePrompt
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import pad_rows
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.runtime.precision import best_precision, processor_flags


class ChoiceScorer:
    """Log-probabilities of the options of prompts.

    What prompts share is read once, and what is asked once for all of its options.

    Args:
        policy: a decoder-only policy in evaluation mode, on its device. Where that multiplies bf16, its weights are
            made bf16, for speed; logits are computed in fp32.

    Raises:
        ConfigError: the policy has an encoder.
    """

    def __init__(self, policy: Policy) -> None:
        if not isinstance(policy, CausalPolicy):
            raise ConfigError("expected a decoder-only language model, got one with an encoder")
        self._policy = policy
        self.precision, _ = best_precision(policy.device, processor_flags())
        self._head = deepcopy(policy.model.lm_head).float()
        if self.precision == "bf16":
            policy.model.to(torch.bfloat16)

    @torch.no_grad()
    def logprobs(self, prompts: Sequence[ChoicePrompt]) -> list[list[float]]:
        """Of each option of each prompt the sum of its tokens' log-probabilities, in nats.

        Args:
            prompts: with the same text before what is asked.

        Raises:
            DataError: they begin differently.
        """
        if len({prompt.before for prompt in prompts}) != 1:
            raise DataError("expected prompts that begin alike")
        ids = torch.tensor([self._tokens(prompts[0].before, True)], device=self._policy.device)
        read = self._policy.model.base_model(input_ids=ids, use_cache=True).past_key_values
        asked = [self._tokens(prompt.asked) for prompt in prompts]
        options = [[self._tokens(option) for option in prompt.options] for prompt in prompts]
        if all(len(option) == 1 for own in options for option in own):
            first, _ = self._first(read, asked)
            return [[float(row[option[0]]) for option in own] for row, own in zip(first, options, strict=True)]
        return [self._whole(deepcopy(read), *pair) for pair in zip(asked, options, strict=True)]

    def _first(self, read: Any, asked: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Any]:
        """Log-probabilities of the token behind each of several texts, fp32 [n, V], and what was read with them."""
        if len(asked) > 1:
            read.batch_repeat_interleave(len(asked))
        ids, mask = pad_rows(asked, self._policy.pad_id, self._policy.device)
        out = self._policy.model.base_model(input_ids=ids, past_key_values=read, use_cache=True)
        last = out.last_hidden_state[torch.arange(len(asked)), mask.sum(dim=1) - 1]  # padding stands behind it
        return self._log_softmax(last), out.past_key_values

    def _whole(self, read: Any, asked: Sequence[int], options: Sequence[Sequence[int]]) -> list[float]:
        """The sums of the options of one text."""
        first, read = self._first(read, [asked])
        begins = [row[0] for row in options]
        ids, mask = pad_rows([row[1:] or [begins[0]] for row in options], self._policy.pad_id, self._policy.device)
        heads = torch.tensor(begins, device=ids.device)[:, None]
        read.batch_repeat_interleave(len(options))
        given = torch.cat([heads, ids[:, :-1]], dim=1)
        states = self._policy.model.base_model(input_ids=given, past_key_values=read, use_cache=True).last_hidden_state
        rest = self._log_softmax(states).gather(2, ids[..., None])[..., 0]
        real = mask * torch.tensor([[len(row) > 1] for row in options], device=ids.device)
        sums: list[float] = (first[0, heads[:, 0]].double() + (rest * real).double().sum(dim=1)).tolist()
        return sums

    def _log_softmax(self, states: torch.Tensor) -> torch.Tensor:
        logits = self._policy.family.head(self._head(states.float()), self._policy.model.config)
        return logits.log_softmax(dim=-1)

    def _tokens(self, text: str, begins: bool = False) -> list[int]:
        tokenizer: Any = self._policy.tokenizer
        return list(tokenizer(text, add_special_tokens=begins).input_ids)
