"""Training examples laid one behind the other in rows, so that little is padding; no example sees another.

A row is as long as the longest example, and the others are put together in as few rows as they fit in. A decoder-only
model reads `prompt | answer` after `prompt | answer` under a mask of ours; positions begin anew with each. T5 knows
positions by their distance, which within an example is what it was: its encoder reads the prompts in rows (or the
pieces of fusion-in-decoder), its decoder the answers, each of which sees the states of its own prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.records import on_device, pad_rows
from finegrained_rlhf.models.families import seq2seq
from finegrained_rlhf.models.families.attention import FLEX_OR_SDPA
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.packed import masks_of_layers

Ids = Sequence[int]


@dataclass(frozen=True)
class Like:
    """What rows are like.

    Attributes:
        device: where they go.
        multiple: of how many columns they are a multiple.
    """

    device: torch.device
    multiple: int = 1


def lay_out(sizes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Which texts share a row: the largest first, each in the first row that has room for it (first-fit decreasing).

    Args:
        sizes: of each text its tokens; of an example that takes part of several rows, its tokens in each of them. A row
            has room for the largest.

    Returns:
        Of each row the places of its texts.
    """
    room = tuple(map(max, zip(*sizes, strict=True)))
    rows: list[list[int]] = []
    left: list[tuple[int, ...]] = []
    for i in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        fits = (r for r, free in enumerate(left) if all(a <= b for a, b in zip(sizes[i], free, strict=True)))
        row = next(fits, len(rows))
        if row == len(rows):
            rows.append([])
            left.append(room)
        rows[row].append(i)
        left[row] = tuple(b - a for a, b in zip(sizes[i], left[row], strict=True))
    return rows


@dataclass(frozen=True)
class Rows:
    """Texts in rows.

    Attributes:
        ids: int64 [R, S], right-padded.
        owner: int64 [R, S], the text of each column, −1 at padding.
        positions: int64 [R, S], of each column in its text, 0 at padding.
        starts: of each text where it begins in a flat [R·S].
    """

    ids: Tensor
    owner: Tensor
    positions: Tensor
    starts: Sequence[int]

    @staticmethod
    def of(texts: Sequence[Ids], layout: Sequence[Sequence[int]], pad: int, like: Like) -> Rows:
        """Texts by what `lay_out` says of them, padded with `pad`."""

        def laid(parts: Sequence[Ids], filling: int) -> Tensor:
            joined = [tuple(chain.from_iterable(parts[i] for i in row)) for row in layout]
            return pad_rows(joined, filling, like.device, like.multiple)[0]

        ids, starts = laid(texts, pad), [0] * len(texts)
        for number, row in enumerate(layout):
            start = number * ids.shape[1]
            for i in row:
                starts[i] = start
                start += len(texts[i])
        owner = laid([(i,) * len(text) for i, text in enumerate(texts)], -1)
        return Rows(ids, owner, laid([range(len(text)) for text in texts], 0), starts)

    def states(self, hidden: Tensor, columns: Sequence[range]) -> Tensor:
        """Of hidden states [R, S, D] those at some columns of each text, [n, D], text by text."""
        flat = [start + column for start, part in zip(self.starts, columns, strict=True) for column in part]
        return hidden.flatten(0, 1).index_select(0, on_device(torch.tensor(flat), hidden.device))

    def sees(self, other: Rows) -> Tensor:
        """Bool [R, S, S']: which columns of the same rows belong to one text; padding sees padding."""
        return self.owner[:, :, None] == other.owner[:, None, :]


def may_share_rows(backbone: Any) -> bool:
    """Whether a causal model computes examples that share a row as it would each: its family and attention allow it."""
    family = CAUSAL_FAMILIES.get(backbone.config.model_type)
    known = backbone.config._attn_implementation in ("sdpa", "eager", FLEX_OR_SDPA)
    return family is not None and family.packed and known


def causal_answer_states(backbone: Any, prompts: Sequence[Ids], answers: Sequence[Ids], pad: int) -> Tensor:
    """Hidden states [n, D] of a causal model that predict each token of one answer to each prompt, answer by answer.

    Args:
        backbone: the model without its head; one that `may_share_rows`.
        prompts: token ids, at least one each.
        answers: token ids; the last one of each is predicted, never read.
        pad: id of the padding token.
    """
    texts = [(*prompt, *answer[:-1]) for prompt, answer in zip(prompts, answers, strict=True)]
    layout = lay_out([(len(text),) for text in texts])
    rows = Rows.of(texts, layout, pad, Like(next(backbone.parameters()).device))
    if len(layout) == len(texts):  # padding stands behind all that is read, so causal attention needs no mask
        hidden = backbone(input_ids=rows.ids, use_cache=False).last_hidden_state
    else:
        masks = _masks(backbone, rows.sees(rows))
        hidden = backbone(
            input_ids=rows.ids, attention_mask=masks, position_ids=rows.positions, use_cache=False
        ).last_hidden_state
    return rows.states(
        hidden, [range(len(text) - len(answer), len(text)) for text, answer in zip(texts, answers, strict=True)]
    )


def _masks(backbone: Any, same: Tensor) -> Any:
    """What is added to scores, for all layers or by their kind: 0 where a column sees another, −inf elsewhere.

    It sees those before it of its own text; with a window only the nearest. They stand side by side.

    Args:
        backbone: whose family says where there are windows.
        same: bool [R, S, S], which columns belong to one text.
    """
    config, device = backbone.config, same.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else backbone.dtype
    column = torch.arange(same.shape[1], device=device)
    back = column[:, None] - column

    def mask(window: int | None) -> Tensor:
        seen = same & (back >= 0) if window is None else same & (back >= 0) & (back < window)
        return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)[:, None]

    return masks_of_layers(config, mask)


def t5_prompt_states(model: Any, texts: Sequence[Ids], pad: int, like: Like) -> Tensor:
    """Encoder output [n, D] at each token of some texts, text by text.

    Args:
        model: of T5's family.
        texts: token ids of prompts, or of their pieces, each of which is encoded alone.
        pad: id of the padding token.
        like: what the rows are like.
    """
    rows = Rows.of(texts, lay_out([(len(text),) for text in texts]), pad, like)
    return rows.states(seq2seq.encode(model, rows.ids, rows.sees(rows)), [range(len(text)) for text in texts])


def t5_answer_states(
    model: Any, states: Tensor, lengths: Sequence[int], answers: Sequence[Ids], start: Ids, pad: int, like: Like
) -> Tensor:
    """Decoder states [n, D] that predict each token of one answer to each prompt, answer by answer.

    Args:
        model: of T5's family.
        states: float [m, D], the encoded prompts, token by token.
        lengths: tokens of each prompt.
        answers: token ids; the last one of each is predicted, never read.
        start: what the decoder reads before an answer.
        pad: id of the padding token.
        like: what the rows are like.
    """
    inputs = [(*start, *answer[:-1]) for answer in answers]
    layout = lay_out([(len(read), length) for read, length in zip(inputs, lengths, strict=True)])
    rows = Rows.of(inputs, layout, pad, like)
    ends = list(accumulate(lengths))
    prompts = [range(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    read = Rows.of(prompts, layout, 0, like)  # its ids are places in `states`
    memory = states.index_select(0, read.ids.flatten()).unflatten(0, tuple(read.ids.shape))
    seen = rows.sees(read) | (rows.owner < 0)[:, :, None]  # also padding sees something: its softmax is defined
    hidden = seq2seq.decode(model, memory, seen, torch.arange(len(layout)), rows.ids, rows.sees(rows))
    return rows.states(hidden, [range(len(start) - 1, len(text)) for text in inputs])
