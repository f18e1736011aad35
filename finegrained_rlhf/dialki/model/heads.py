"""What stands on the encoder: knowledge contextualization, passage and span heads, history heads (thesis, 3.2.1).

Vectors are of whole inputs (z), turns (u) and spans (s).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finegrained_rlhf.dialki.inputs.batches import DialkiBatch

MASKED = -1e9
"""The logit of what is no choice. Its probability is exactly 0 in fp32, and its gradient is finite."""


@dataclass(frozen=True)
class Vectors:
    """Hidden states gathered from P inputs, fp32 also where the encoder computes in bf16.

    Attributes:
        whole: [P, D], z: at the first token.
        turns: [P, T, D], u: at each turn's role token, newest first; without meaning at padding.
        spans: [P, S, D], s: at each candidate's `[CLS]`; without meaning at padding.
    """

    whole: Tensor
    turns: Tensor
    spans: Tensor


@dataclass(frozen=True)
class NextScores:
    """Logits of what the next agent turn rests on, fp32, `MASKED` where there is nothing to choose.

    Attributes:
        passage: [N, M].
        begin: [N, M, S], of each span as the first one.
        end: [N, M, S], as the last one.
        passage_mask: bool [N, M], True = a passage.
        span_mask: bool [N, M, S], True = a candidate.
    """

    passage: Tensor
    begin: Tensor
    end: Tensor
    passage_mask: Tensor
    span_mask: Tensor


@dataclass(frozen=True)
class HistoryScores:
    """Logits of what each turn rests on, fp32, `MASKED` where there is nothing to choose; turns newest first.

    Attributes:
        passage: [N, T, M].
        begin: [N, T, M, S].
        end: [N, T, M, S].
    """

    passage: Tensor
    begin: Tensor
    end: Tensor


class Contextualizer(nn.Module):
    """Span vectors that have seen the turns of one role (thesis, section 3.2.1).

    a_ij = W_s s_j + W_z z + W_u u_i;  g_ij = σ(u_i·z + u_i·s_j);  ŝ_j = v(Σ_i ReLU(a_ij) g_ij + s_j), where v scales to
    length 1 and i runs over the turns of the role.

    Args:
        width: D.
        recent: only so many most recent turns of the role count; None counts all.
    """

    def __init__(self, width: int, recent: int | None = None) -> None:
        super().__init__()
        self.recent = recent
        self.span, self.whole, self.turn = (nn.Linear(width, width) for _ in range(3))

    def forward(self, spans: Tensor, whole: Tensor, turns: Tensor, mask: Tensor, dropout: nn.Module) -> Tensor:
        """ŝ, [P, S, D].

        Args:
            spans: [P, S, D].
            whole: [P, D].
            turns: [P, T, D], newest first.
            mask: bool [P, T], True = a turn of the role.
            dropout: applied to s, z and u before the linear layers.
        """
        turns, mask = first_turns(turns, mask, self.recent)
        gates = torch.sigmoid((turns * whole[:, None]).sum(-1)[:, :, None] + turns @ spans.transpose(1, 2))
        gates = gates * mask[:, :, None]  # [P, T, S]
        of_span = self.span(dropout(spans))
        of_rest = self.whole(dropout(whole))[:, None] + self.turn(dropout(turns))
        update = torch.zeros_like(spans)
        for i in range(turns.shape[1]):
            update = update + torch.relu(of_span + of_rest[:, i, None]) * gates[:, i, :, None]
        return F.normalize(update + spans, dim=-1)


def first_turns(turns: Tensor, mask: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """The first `count` masked turns of each row [P, K, D] and which of them are there [P, K]; None takes all T."""
    if count is None or count >= mask.shape[1]:
        return turns, mask
    order = (~mask).byte().argsort(dim=1, stable=True)[:, :count]
    return turns.gather(1, order[:, :, None].expand(-1, -1, turns.shape[-1])), mask.gather(1, order)


class DialkiHeads(nn.Module):
    """Everything that is trained beside the encoder. It computes in fp32, inside bf16 autocast too.

    Contextual spans have length 1 and new weights are small, so the logits of one passage's spans lie close together:
    bf16 makes many of them equal, and the first of equals would win.

    New weights are drawn from N(0, 0.02²) of the global generator, biases are 0.

    Args:
        width: D.
        contextualize: let span vectors see the turns; without it spans are scored as the encoder left them.
        user_turns: how many of the most recent user turns they see; they see all agent turns.
        dropout: on s, z and u before the contextualization.
        spans: look for spans in passages. Without them there are no heads of spans, every begin and end logit is 0, so
            that its losses are 0, and with `contextualize` a passage is scored by z and both ŝ of its one span.
    """

    def __init__(
        self, width: int, contextualize: bool = True, user_turns: int = 2, dropout: float = 0.1, spans: bool = True
    ) -> None:
        super().__init__()
        self.contextualize = (
            nn.ModuleDict({"user": Contextualizer(width, user_turns), "agent": Contextualizer(width)})
            if contextualize
            else None
        )
        wide = 3 * width if contextualize else width
        self.span_head = nn.Linear(wide, 2) if spans else None
        self.passage_head = nn.Linear(width if spans else wide, 1)
        names = ("start", "end", "passage_hidden") if spans else ("passage_hidden",)
        history: dict[str, nn.Module] = {name: nn.Linear(width, width) for name in names}
        self.history = nn.ModuleDict({**history, "passage_head": nn.Linear(width, 1)})
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def next_scores(self, vectors: Vectors, batch: DialkiBatch, masked: bool = True) -> NextScores:
        """Logits of the next agent turn's knowledge.

        Args:
            vectors: of the batch's inputs.
            batch: where turns, spans and passages are.
            masked: set the logits of padding to `MASKED`; without it they are what the vectors there give (parity).
        """
        with full_precision(vectors.spans):
            if self.span_head is None:
                begin = end = vectors.spans.new_zeros(vectors.spans.shape[:2])
                passage = self.passage_head(self._contextual_passages(vectors, batch)).squeeze(-1)
            else:
                begin, end = self.span_head(self._contextual_spans(vectors, batch)).unbind(-1)
                passage = self.passage_head(vectors.whole).squeeze(-1)
        mask = by_dialogue(batch.span_mask, batch, False)
        return NextScores(
            passage=_where(by_dialogue(passage, batch), batch.passage_mask, masked),
            begin=_where(by_dialogue(begin, batch), mask, masked),
            end=_where(by_dialogue(end, batch), mask, masked),
            passage_mask=batch.passage_mask,
            span_mask=mask,
        )

    def _contextual_spans(self, vectors: Vectors, batch: DialkiBatch) -> Tensor:
        if self.contextualize is None:
            return vectors.spans
        is_turn, is_user = batch.turn_mask[batch.owners], batch.turn_is_user[batch.owners]
        parts = [vectors.spans]
        for role, mask in (("user", is_turn & is_user), ("agent", is_turn & ~is_user)):
            parts.append(self.contextualize[role](vectors.spans, vectors.whole, vectors.turns, mask, self.dropout))
        return torch.cat(parts, dim=-1)

    def _contextual_passages(self, vectors: Vectors, batch: DialkiBatch) -> Tensor:
        """z, and beside it what the one span of each passage saw of the turns."""
        if self.contextualize is None:
            return vectors.whole
        contextual = self._contextual_spans(vectors, batch)[:, 0, vectors.whole.shape[-1] :]
        return torch.cat([vectors.whole, contextual], dim=-1)

    def history_scores(self, vectors: Vectors, batch: DialkiBatch, masked: bool = True) -> HistoryScores:
        """Logits of what each turn rests on: (W u_i)·s_j for spans, Linear(ReLU(W u_i)) for passages."""
        spans = vectors.spans.transpose(1, 2)
        with full_precision(spans):
            passage = self.history["passage_head"](torch.relu(self.history["passage_hidden"](vectors.turns)))
            none = vectors.turns.new_zeros(*vectors.turns.shape[:2], spans.shape[-1])
            of_spans = [
                self.history[name](vectors.turns) @ spans if name in self.history else none for name in ("start", "end")
            ]
        mask = by_dialogue(batch.span_mask, batch, False)[:, None]
        scores = [_where(by_dialogue(part, batch).transpose(1, 2), mask, masked) for part in of_spans]
        of_passages = by_dialogue(passage.squeeze(-1), batch).transpose(1, 2)
        return HistoryScores(_where(of_passages, batch.passage_mask[:, None], masked), *scores)


def gate_similarity(vectors: Vectors) -> Tensor:
    """σ(u_i·z) of every turn, fp32 [P, T], newest first (thesis, figure 3.3)."""
    return torch.sigmoid((vectors.turns * vectors.whole[:, None]).sum(-1))


def full_precision(of: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast on the device of a tensor [...]; what is computed there should be fp32 already."""
    return torch.autocast(of.device.type, enabled=False)


def by_dialogue(values: Tensor, batch: DialkiBatch, padding: float = MASKED) -> Tensor:
    """Values [P, …] of passages as [N, M, …], `padding` where a dialogue has fewer."""
    shape = (*batch.passage_mask.shape, *values.shape[1:])
    return values.new_full(shape, padding).index_put((batch.owners, batch.places), values)


def _where(values: Tensor, mask: Tensor, masked: bool) -> Tensor:
    return values.masked_fill(~mask, MASKED) if masked else values
