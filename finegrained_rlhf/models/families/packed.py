"""Decoder-only passes in which a prompt is computed once: its N responses are packed behind it in one row.

A row is `prompt | response 1 | response 2 | …`; a response sees its prompt and itself, and its positions go on from its
prompt's last one. The model's own backbone runs, under a mask of ours: `scaled_dot_product_attention` with a mask
[P, 1, S, S], and on CUDA FlexAttention, which skips the blocks that nobody sees. P rows of S = L + N·(T − 1) columns
stand for P·N rows of L + T.

A mask hides pairs of columns but does not save them: S² of them are computed. So where no FlexAttention serves, as many
responses share a row as are cheapest by a count of multiplications (`PassCost`): all, a few, or each its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from finegrained_rlhf.core.records import on_device
from finegrained_rlhf.models.families.attention import FLEX_BLOCK, FLEX_OR_SDPA, prefer_flex, takes_flex
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES, check_columns, position_rows

Visible = Callable[[Any, Any, Any, Any], Any]


def left_pad(ids: Tensor, mask: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """Right-padded ids and mask, int64 [P, L], with their padding on the left, where causal generation needs it."""
    width = ids.shape[1]
    shift = width - mask.sum(dim=1, keepdim=True)
    source = torch.arange(width, device=ids.device).unsqueeze(0) - shift
    moved = ids.gather(1, source.clamp(min=0))
    return torch.where(source >= 0, moved, pad), (source >= 0).long()


def causal_states(
    backbone: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    prompt_index: Tensor,
    response_ids: Tensor,
    pad: int,
    lengths: Sequence[int],
) -> Tensor:
    """Hidden states [R, T, D] that predict each response token, of a causal model over prompt + response.

    Where a prompt has several rows and the model's family allows it, they are packed behind it, so that the prompt is
    computed once; else each row is prompt and response, padded on the left.

    Args:
        backbone: the causal model without its head.
        prompt_ids: int64 [P, L], right-padded.
        prompt_mask: int64 [P, L].
        prompt_index: int64 [R], the prompt of each row.
        response_ids: int64 [R, T], right-padded.
        pad: id of the padding token.
        lengths: tokens of the P prompts.
    """
    if takes_packed(backbone):
        prompts, width = prompt_ids.shape
        cost = pass_cost(backbone, backbone.config, prompt_ids.device.type)
        rows = pack_rows(prompt_index.tolist(), prompts, width, response_ids.shape[1], cost)
        if rows is not None:
            return packed_states(backbone, prompt_ids, prompt_mask, rows, response_ids, pad, lengths)
    check_columns(backbone.config, prompt_ids.shape[1] + response_ids.shape[1])
    owners = on_device(prompt_index, response_ids.device)
    left_ids, left_mask = left_pad(prompt_ids, prompt_mask, pad)
    ids = torch.cat([left_ids[owners], response_ids], dim=1)
    mask = torch.cat([left_mask[owners], torch.ones_like(response_ids)], dim=1)
    # Padding may lie behind the last row of a table of positions.
    last = position_rows(backbone.config)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0, max=None if last is None else last - 1)
    output = backbone(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    before = prompt_ids.shape[1] - 1
    return output.last_hidden_state[:, before : before + response_ids.shape[1]]


@dataclass(frozen=True)
class PassCost:
    """Multiply-adds of one layer, forward, as far as they depend on how rows are packed.

    Attributes:
        column: of a token: its products with the layer's weights.
        pair: of a query with a key, in all heads, where all S² pairs of a row are computed; 0 where a kernel skips
            those that the mask hides.
        causal_skips: whether rows without a mask of ours are spared the pairs that look ahead.
    """

    column: float = 1.0
    pair: float = 0.0
    causal_skips: bool = False

    def packed(self, rows: int, columns: int) -> float:
        """Of rows under a mask of ours."""
        return rows * columns * (self.column + columns * self.pair)

    def plain(self, rows: int, columns: int) -> float:
        """Of rows under the model's own causal mask."""
        return rows * columns * (self.column + columns * self.pair * (0.5 if self.causal_skips else 1.0))


_SCORE = {"sdpa": 16.0, "eager": 256.0}
"""What a score costs a head beside its products with query and value, in multiply-adds: the softmax in a kernel, and
written out as tensors (with a soft cap in Gemma 2). As a pass on the CPU took; on a GPU it would be more, not less."""
_KEPT_MASKS = 128
_WORTH = 0.9
"""Rows are packed where they then cost at most so much of what they cost one by one."""


def pass_cost(module: nn.Module, config: Any, device: str) -> PassCost:
    """What packing changes for a decoder-only model on a device.

    Args:
        module: the backbone, or a model around it.
        config: of the backbone.
        device: the type of the device: `cpu` or `cuda`.
    """
    backbone = next(part for part in module.modules() if isinstance(part, PreTrainedModel))
    layer = next(part for part in backbone.modules() if isinstance(part, GradientCheckpointingLayer))
    column = float(sum(parameter.numel() for parameter in layer.parameters()))
    if takes_flex(backbone, config, device):
        return PassCost(column)
    heads: int = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    eager = config._attn_implementation == "eager"
    return PassCost(column, heads * (2.0 * width + _SCORE["eager" if eager else "sdpa"]), causal_skips=not eager)


@dataclass(frozen=True)
class PackedRows:
    """Where each response lies in a packed batch.

    Attributes:
        owners: the prompt of each of the packed rows; a prompt may have several.
        slots: responses behind the prompt of a row, at most; the last row of a prompt may have empty slots.
        places: for each of the R responses, packed row · slots + slot.
    """

    owners: list[int]
    slots: int
    places: list[int]

    @property
    def in_order(self) -> bool:
        """Whether the responses fill the slots one after the other."""
        return self.places == list(range(len(self.owners) * self.slots))


def packed_slots(counts: Sequence[int], prompt_tokens: int, response_tokens: int, cost: PassCost) -> int | None:
    """How many responses share a row, so that a batch costs least; None where each has its own.

    Args:
        counts: responses to each of the P prompts.
        prompt_tokens: L, the longest prompt.
        response_tokens: T, the longest response.
        cost: of a pass.
    """
    best, least = None, cost.plain(sum(counts), prompt_tokens + response_tokens)
    if cost.pair:
        least *= _WORTH
    for slots in range(max(counts, default=0), 1, -1):
        rows = sum(-(-count // slots) for count in counts)
        packed = cost.packed(rows, prompt_tokens + slots * (response_tokens - 1))
        if response_tokens and packed < least:
            best, least = slots, packed
    return best


def pack_rows(
    owners: list[int], prompts: int, prompt_tokens: int, response_tokens: int, cost: PassCost | None = None
) -> PackedRows | None:
    """The packing of rows, in whatever order they come; None where it would save nothing.

    Args:
        owners: the prompt of each of the R rows.
        prompts: P.
        prompt_tokens: L, the longest prompt.
        response_tokens: T, the longest response.
        cost: of a pass; None counts columns alone.
    """
    counts = [0] * prompts
    for owner in owners:
        counts[owner] += 1
    slots = packed_slots(counts, prompt_tokens, response_tokens, cost or PassCost())
    if slots is None:
        return None
    rows = [-(-count // slots) for count in counts]
    first = [sum(rows[:prompt]) * slots for prompt in range(prompts)]
    places, taken = [], [0] * prompts
    for owner in owners:
        places.append(first[owner] + taken[owner])
        taken[owner] += 1
    return PackedRows([prompt for prompt, count in enumerate(rows) for _ in range(count)], slots, places)


def pass_tokens(backbone: Any, device: str, counts: Sequence[int], prompt_tokens: int, response_tokens: int) -> int:
    """Columns that a pass over prompts with so many responses each computes, padding included."""
    slots = None
    if takes_packed(backbone):
        slots = packed_slots(counts, prompt_tokens, response_tokens, pass_cost(backbone, backbone.config, device))
    return columns_of(counts, prompt_tokens, response_tokens, slots)


def columns_of(counts: Sequence[int], prompt_tokens: int, response_tokens: int, slots: int | None) -> int:
    """Columns of rows that `slots` responses share; None: each response has its own."""
    if slots is None:
        return sum(counts) * (prompt_tokens + response_tokens)
    return sum(-(-count // slots) for count in counts) * (prompt_tokens + slots * response_tokens)


def takes_packed(backbone: Any) -> bool:
    """Whether a backbone computes a packed batch as it would each row: its family says so, and its attention can.

    In training mode (dropout) it does not: attention with dropout has no FlexAttention.
    """
    family = CAUSAL_FAMILIES.get(backbone.config.model_type)
    known = backbone.config._attn_implementation in ("sdpa", "eager", FLEX_OR_SDPA)
    return family is not None and family.packed and known and not backbone.training


def packed_states(
    backbone: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    rows: PackedRows,
    response_ids: Tensor,
    pad: int,
    lengths: Sequence[int],
) -> Tensor:
    """Hidden states [R, T, D] that predict each response token, every prompt computed once for each of its packed rows.

    Args:
        backbone: the causal model without its head.
        prompt_ids: int64 [P, L], right-padded.
        prompt_mask: int64 [P, L].
        rows: the packing of the R responses.
        response_ids: int64 [R, T], right-padded. The last column is predicted, never read.
        pad: id of the padding token.
        lengths: tokens of the P prompts.
    """
    packed_lengths = tuple(lengths[owner] for owner in rows.owners)
    if rows.owners != list(range(len(prompt_ids))):
        owners = on_device(torch.tensor(rows.owners), prompt_ids.device)
        prompt_ids, prompt_mask = prompt_ids[owners], prompt_mask[owners]
    (prompts, length), slots, device = prompt_ids.shape, rows.slots, prompt_ids.device
    read = response_ids.shape[1] - 1
    places = None if rows.in_order else on_device(torch.tensor(rows.places), device)
    inputs = response_ids[:, :-1]
    if places is not None:
        inputs = torch.full((prompts * slots, read), pad, device=device).index_copy(0, places, inputs)
    ids = torch.cat([prompt_ids, inputs.reshape(prompts, slots * read)], dim=1)
    prefer_flex(backbone, device)
    flex = backbone.config._attn_implementation == FLEX_OR_SDPA
    if flex:  # whole blocks, by padding as prompts have it
        ids = F.pad(ids, (0, -ids.shape[1] % FLEX_BLOCK), value=pad)
    last = position_rows(backbone.config)
    columns = packed_columns(prompt_mask, slots, read, ids.shape[1], last)
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else backbone.dtype

    def mask(window: int | None) -> Any:
        if flex:
            return _blocks(packed_lengths, length, slots, read, ids.shape[1], last, window, device)
        return _added(visible_columns(*columns, window), columns[1], dtype)

    hidden = backbone(
        input_ids=ids, attention_mask=masks_of_layers(backbone.config, mask), position_ids=columns[2], use_cache=False
    ).last_hidden_state
    first = hidden[torch.arange(prompts, device=device), prompt_mask.sum(dim=1) - 1]
    first = first[:, None, None].expand(-1, slots, 1, -1)
    behind = hidden[:, length : length + slots * read].unflatten(1, (slots, read))
    states = torch.cat([first, behind], dim=2).flatten(0, 1)
    return states if places is None else states[places]


def packed_columns(
    prompt_mask: Tensor, slots: int, read: int, width: int, last: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What the columns of packed rows are, padding behind them included; as `visible_columns` takes it.

    Args:
        prompt_mask: int64 or bool [P, L], of the packed rows.
        slots: responses behind each prompt.
        read: columns of a response.
        width: S, columns in all.
        last: rows of the model's table of positions, if any.

    Returns:
        Owners int64 [S], whether real bool [P, S], and positions int64 [P, S].
    """
    (prompts, length), device = prompt_mask.shape, prompt_mask.device
    own = prompt_mask.sum(dim=1).unsqueeze(1) + torch.arange(read, device=device).repeat(slots)
    positions = torch.cat([torch.arange(length, device=device).expand(prompts, -1), own], dim=1)
    # padding may lie behind the last row of a table of positions
    positions = positions if last is None else positions.clamp(max=last - 1)
    behind_prompt = torch.arange(slots * read, device=device) // max(read, 1)
    owner = torch.cat([torch.full((length,), -1, device=device), behind_prompt])
    real = torch.cat([prompt_mask.bool(), torch.ones_like(own, dtype=torch.bool)], dim=1)
    more = 0, width - real.shape[1]
    return F.pad(owner, more, value=-1), F.pad(real, more), F.pad(positions, more)


def visible_columns(owner: Tensor, real: Tensor, positions: Tensor, window: int | None) -> Visible:
    """Which column sees which, as a function of (row, head, query column, key column).

    A column sees itself, and the real earlier columns of its prompt and of its own response; with a window only those
    fewer than `window` positions back. (Columns of other responses lie between, so distances in columns say nothing.)

    Args:
        owner: int64 [S], the slot of each column, −1 in the prompt and at padding.
        real: bool [P, S], False at the padding of prompts.
        positions: int64 [P, S].
        window: in tokens; None for no limit.
    """

    def visible(row: Any, head: Any, query: Any, key: Any) -> Any:
        seen = (key <= query) & ((owner[key] < 0) | (owner[key] == owner[query])) & real[row, key]
        if window is not None:
            seen = seen & (positions[row, query] - positions[row, key] < window)
        return seen | (key == query)

    return visible


def masks_of_layers(config: Any, mask: Callable[[int | None], Any]) -> Any:
    """The mask, by window, that a backbone takes for all layers, or one for each kind of layer."""
    family = CAUSAL_FAMILIES[config.model_type]
    if family.windows == "none":
        return mask(None)
    if family.windows == "all":
        return mask(config.sliding_window)
    windows = {"full_attention": None, "sliding_attention": config.sliding_window}
    return {kind: mask(windows[kind]) for kind in dict.fromkeys(config.layer_types)}


@lru_cache(maxsize=_KEPT_MASKS)
def _blocks(
    lengths: tuple[int, ...],
    prompt_tokens: int,
    slots: int,
    read: int,
    width: int,
    last: int | None,
    window: int | None,
    device: torch.device,
) -> BlockMask:
    """FlexAttention's mask of packed rows, whose prompts have so many tokens; other arguments as `packed_columns`.

    Kept, because policy, value model and reference make passes over the same rows, and epochs make them again.
    """
    tokens = on_device(torch.tensor(lengths), device)
    real = torch.arange(prompt_tokens, device=device) < tokens.unsqueeze(1)
    visible = visible_columns(*packed_columns(real, slots, read, width, last), window)
    return create_block_mask(visible, len(lengths), None, width, width, device=device)


def _added(visible: Visible, real: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible and −inf elsewhere, [P, 1, S, S], in the dtype of the attention.

    A bool mask, or one of another dtype, would be turned into such a one in every layer, and kept for the backward pass
    by each of them.
    """
    (prompts, columns), device = real.shape, real.device
    column = torch.arange(columns, device=device)
    row = torch.arange(prompts, device=device)[:, None, None]
    seen = visible(row, None, column[:, None], column[None, :]).unsqueeze(1)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)
