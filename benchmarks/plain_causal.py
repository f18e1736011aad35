"""The plain side for decoder-only models: `generate` on repeated prompts, full sequences in scoring and update.

Prompts are padded on the left, as generation wants them, and every response has its own copy of its prompt in front,
in every pass. Logits are computed where a response token is predicted (`logits_to_keep`), no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.families import CAUSAL
from benchmarks.plain import Drawn, Plain
from benchmarks.workload import PAD
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.families.packed import left_pad


class PlainCausal(Plain):
    """One PPO step of a decoder-only policy; see `Plain`."""

    def prompt_rows(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """Ids and mask, int64 [P, L], padded on the left."""
        return left_pad(*super().prompt_rows(prompts), PAD)

    def as_drawn(self, prompts: Sequence[Prompt], ids: Tensor, mask: Tensor, texts: Sequence[str]) -> Drawn:
        """Responses with the prompt of each row in front, padded on the left."""
        return Drawn(prompts, *self.prompt_rows(prompts), ids, mask, texts)

    def inputs(self, drawn: Drawn, rows: slice) -> dict[str, Tensor]:
        """Prompt and response of each row as one sequence, int64 [r, L + T]."""
        ids = torch.cat([drawn.prompt_ids[rows], drawn.ids[rows]], dim=1)
        mask = torch.cat([drawn.prompt_mask[rows], drawn.mask[rows]], dim=1)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)}

    def response_logits(self, model: Any, drawn: Drawn, rows: slice) -> Tensor:
        """Logits [r, T, V] of the response tokens."""
        kept = drawn.ids.shape[1] + 1
        return model(**self.inputs(drawn, rows), use_cache=False, logits_to_keep=kept).logits[:, :-1]

    def value_states(self, drawn: Drawn, rows: slice) -> Tensor:
        """States [r, T, D] that V(s_t) is read from."""
        states = self.value(**self.inputs(drawn, rows), use_cache=False).last_hidden_state
        before = drawn.prompt_ids.shape[1] - 1
        return states[:, before:-1]


def plain_side(workload: Any, lengths: str, *adam: Any) -> Plain:
    """The plain side for the family of the workload's profile."""
    return (PlainCausal if workload.profile.family in CAUSAL else Plain)(workload, lengths, *adam)
