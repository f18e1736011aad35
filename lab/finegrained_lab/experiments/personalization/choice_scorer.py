"""How probable a language model finds each allowed answer, behind examples that several questions share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from finegrained_lab.experiments.personalization.choice_items import ChoicePrompt
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt, pad_rows
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.runtime.precision import best_precision, processor_flags


class ChoiceScorer:
    """Log-probabilities of the options of prompts.

    Args:
        policy: in evaluation mode, on its device. Where that multiplies bf16, its weights are made bf16, for speed.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.precision, _ = best_precision(policy.device, processor_flags())
        if self.precision == "bf16":
            policy.model.to(torch.bfloat16)

    def logprobs(self, prompts: Sequence[ChoicePrompt]) -> list[list[float]]:
        """Of each option of each prompt the sum of its tokens' log-probabilities, in nats.

        Args:
            prompts: with the same text before what is asked, which is computed once.

        Raises:
            DataError: they begin differently.
        """
        if len({prompt.before for prompt in prompts}) != 1:
            raise DataError("expected prompts that begin alike")
        before = tuple(self._tokens(prompts[0].before, True))
        rows, lengths = list[list[int]](), list[int]()
        for prompt in prompts:
            asked = self._tokens(prompt.asked)
            for option in prompt.options:
                tokens = self._tokens(option)
                rows.append(asked + tokens)
                lengths.append(len(tokens))
        ids, mask = pad_rows(rows, self._policy.pad_id, self._policy.device)
        for number, length in enumerate(lengths):
            mask[number, : len(rows[number]) - length] = 0  # what is asked is read, and not scored
        sums = iter(self._sums(Prompt("choices", prompts[0].before, before), ids, mask))
        return [[next(sums) for _ in prompt.options] for prompt in prompts]

    def _sums(self, prompt: Prompt, ids: torch.Tensor, mask: torch.Tensor) -> list[float]:
        in_bf16 = self.precision == "bf16"
        device = self._policy.device.type
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16) if in_bf16 else nullcontext():
            memory = self._policy.encode([prompt])
            index = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
            sums: list[float] = self._policy.logprobs(memory, index, ids, mask).logprobs.double().sum(dim=1).tolist()
        return sums

    def _tokens(self, text: str, begins: bool = False) -> list[int]:
        tokenizer: Any = self._policy.tokenizer
        return list(tokenizer(text, add_special_tokens=begins).input_ids)
