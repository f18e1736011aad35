"""The perplexity of continuations under a language model that judges them, given their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.metrics.functions import perplexity_of
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.text.plain_text import plain_token_ids

LARGEST = 1e4
"""The public code leaves out perplexities from here on."""


@dataclass(frozen=True)
class JudgedText:
    """What a judge says of a continuation y of a prompt x.

    Attributes:
        nll: −log p(x y) + log p(x), in nats; the end of the text has none.
        tokens: of x y, less those of x.
    """

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(nll / tokens)."""
        return perplexity_of(self.nll / self.tokens)


class JudgeModel:
    """A decoder-only language model that judges continuations.

    Args:
        path: directory, run or Hub name.
        device: where it computes.
        batch_size: texts in one forward pass.

    Raises:
        ModelError: it cannot be read, or is an encoder-decoder.
    """

    def __init__(self, path: ModelName, device: torch.device | str = "cpu", batch_size: int = 32) -> None:
        policy = open_policy(path)
        if not isinstance(policy, CausalPolicy):
            raise ModelError(f"{path}: expected a decoder-only judge, got an encoder-decoder")
        self.policy, self.batch_size = policy.to(device).eval(), batch_size

    def judge(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[JudgedText | None]:
        """Judge continuations, one a prompt. None where a continuation has no token of its own.

        Args:
            prompts: R prompts.
            continuations: R texts, with the white space between prompt and text.

        Raises:
            ModelError: a text is longer than the model has positions.
        """
        texts = self._ids([x + y for x, y in zip(prompts, continuations, strict=True)])
        begun = self._ids(prompts)
        present = [bool(y.strip()) for y in continuations]
        alone = [i for i, (row, first) in enumerate(zip(texts, begun, strict=True)) if row[: len(first)] != first]
        rows = [*texts, *(begun[i] for i in alone)]
        known = self._token_nlls(rows)
        of_prompt = dict(zip(alone, known[len(texts) :], strict=True))
        judged: list[JudgedText | None] = []
        for i, (row, first) in enumerate(zip(known, begun, strict=False)):
            tokens = len(texts[i]) - len(first)
            of_begin = sum(of_prompt[i]) if i in of_prompt else sum(row[: len(first) - 1])
            judged.append(JudgedText(sum(row) - of_begin, tokens) if present[i] and tokens > 0 else None)
        return judged

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """As the judge reads them, without an end of sequence that its tokenizer may add."""
        rows = plain_token_ids(self.policy.tokenizer, list(texts), add_special_tokens=True)
        ends = self.policy.eos_ids
        return [list(row[:-1] if len(row) > 1 and row[-1] in ends else row) for row in rows]

    @torch.no_grad()
    def _token_nlls(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """−log p of every token but the first, given those before it."""
        check_positions(self.policy.model.config, max((len(row) for row in rows), default=0), "judge")
        nlls: list[list[float]] = [[] for _ in rows]
        several = [i for i, row in enumerate(rows) if len(row) > 1]
        overhead = batch_overhead(self.policy.device)
        for group in length_groups([len(rows[i]) for i in several], self.batch_size, overhead):
            chosen = [several[i] for i in group]
            parts = pad_rows([rows[i][1:] for i in chosen], self.policy.pad_id)
            ids, mask = (on_device(part, self.policy.device) for part in parts)
            memory = self.policy.encode([Prompt(str(i), "", tuple(rows[i][:1])) for i in chosen])
            index = torch.arange(len(chosen), device=self.policy.device)
            logprobs = self.policy.logprobs(memory, index, ids, mask).logprobs.double().cpu()
            for i, row in zip(chosen, logprobs, strict=True):
                nlls[i] = (-row[: len(rows[i]) - 1]).tolist()
        return nlls
