"""What a reward model reads, as token ids with the separators in known places.

Training and scoring both go through here. An input that is too long loses the end of its passages, never a separator.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import DataError, ModelError
from finegrained_rlhf.core.records import on_device, pad_rows
from finegrained_rlhf.text.plain_text import TooLong, plain_token_ids
from reward_models.encoders.counts import word_counts
from reward_models.kinds import Kind
from reward_models.parts import InputParts, PassageChoice, choose, selection_words, sentences_of

logger = logging.getLogger(__name__)

_CACHED_PIECES = 4096


@dataclass(frozen=True)
class EncodedInput:
    """One input in tokens.

    Attributes:
        ids: token ids, special tokens included.
        separators: position in `ids` of the separator at which each segment is judged: the one before it, or behind it
            for a causal model.
        cut: tokens of the passages that were left out.
        lost: tokens of segments, or of what follows the passages, that were left out as well (`too_long=truncate`).
        unread: segments at the end that have no separator here, because not all separators fit.
        counts: a row for each separator, or one for a whole answer (`encoders/counts.py`); none where none are read.
    """

    ids: tuple[int, ...]
    separators: tuple[int, ...]
    cut: int = 0
    lost: int = 0
    unread: int = 0
    counts: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class InputBatch:
    """Inputs padded to the longest of them.

    Attributes:
        ids: int64 [B, L].
        mask: int64 [B, L], 1 = real.
        rows: int64 [S], the row of each separator, inputs in order.
        positions: int64 [S], its position in the row.
        columns: int64 [S], its number among the separators of its row, from 0.
        width: the most separators of any row.
        counts: fp32 [S, F] of the S separators, or [B, F] of whole answers; None where the model reads none.
    """

    ids: Tensor
    mask: Tensor
    rows: Tensor
    positions: Tensor
    columns: Tensor
    width: int
    counts: Tensor | None = None


def pad_inputs(inputs: Sequence[EncodedInput], pad_id: int, device: torch.device | str = "cpu") -> InputBatch:
    """B inputs padded to ids and mask [B, L], and the S separators among them; see `InputBatch`.

    The copies to a CUDA device are not waited for.
    """
    ids, mask = pad_rows([item.ids for item in inputs], pad_id)
    rows = [row for row, item in enumerate(inputs) for _ in item.separators]
    positions = [position for item in inputs for position in item.separators]
    columns = [column for item in inputs for column in range(len(item.separators))]
    where = on_device(torch.tensor([rows, positions, columns], dtype=torch.long), device).unbind()
    width = max((len(item.separators) for item in inputs), default=0)
    counts = [row for item in inputs for row in item.counts]
    counted = on_device(torch.tensor(counts, dtype=torch.float32), device) if counts else None
    return InputBatch(on_device(ids, device), on_device(mask, device), where[0], where[1], where[2], width, counted)


def batches_by_length(
    inputs: Sequence[EncodedInput], batch_size: int, pad_id: int, device: torch.device | str = "cpu"
) -> Iterator[tuple[list[int], InputBatch]]:
    """Batches of at most `batch_size` inputs of similar length, shortest first, each with the places of its inputs.

    A batch is [B, L], L the length of its longest input.
    """
    for rows in length_groups([len(item.ids) for item in inputs], batch_size, batch_overhead(device)):
        yield rows, pad_inputs([inputs[i] for i in rows], pad_id, device)


class _Pieces(dict[str, tuple[int, ...]]):
    """Token ids by text."""


_shared_pieces: WeakValueDictionary[tuple[type, str], _Pieces] = WeakValueDictionary()


def _pieces_of(tokenizer: Any) -> _Pieces:
    """The cache that all encoders with a tokenizer of the same content share; one of its own for a slow tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _Pieces()
    key = type(tokenizer), hashlib.sha256(backend.to_str().encode()).hexdigest()
    return _shared_pieces.setdefault(key, _Pieces())


class RewardInputEncoder:
    """Turns words into ids: `<s> before context after (</s> segment)* </s>`.

    A segment is judged at the separator before it, as in the paper. A causal model has not seen the segment there, so
    its separators are those behind the segments; a whole answer ends with the last token that is not padding: with the
    end token, or without one where the end token pads.

    The pieces are tokenised one by one, each but the first with a leading space as inside a running text, so that a
    separator is always exactly one known token; `</s>` or `<mask>` written in a piece are characters like any other. A
    piece is tokenised once: by all samples of a prompt, and by all encoders whose tokenizers are equal.

    Args:
        tokenizer: with a class (or start) token and a separator (or end) token.
        max_length: longest input in tokens.
        too_long: what happens to an input that does not fit even without its passages: `refuse` raises, as labelled
            data should; `truncate` shortens the longest segments (or a whole answer's end) until it fits, and counts
            it. Every separator is kept; where not even they fit, the last segments are left unread. A response of a
            policy in training must not end the run.
        causal: the model sees only what stands before a token. Its separator is the end token, and its tokenizer may
            have no start token; then none is put.
        passages: what is kept of passages that do not fit (`parts.py`).
        counts: the kind that words are counted for (`encoders/counts.py`); None counts none.
        passage_tokens: the most tokens of passages that are read; None for as many as fit.

    Raises:
        ModelError: the tokenizer lacks one of these tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        too_long: TooLong = "refuse",
        causal: bool = False,
        passages: PassageChoice = "first",
        counts: Kind | None = None,
        passage_tokens: int | None = None,
    ) -> None:
        start = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
        sep = tokenizer.sep_token_id if tokenizer.sep_token_id is not None and not causal else tokenizer.eos_token_id
        if (start is None and not causal) or sep is None or tokenizer.pad_token_id is None:
            raise ModelError("a reward model's tokenizer needs a class, a separator and a padding token")
        self.tokenizer, self.max_length, self.too_long, self.causal = tokenizer, max_length, too_long, causal
        self.passages: PassageChoice = passages
        self.counts, self.passage_tokens = counts, passage_tokens
        self.sep_id, self.pad_id = int(sep), int(tokenizer.pad_token_id)
        self._start = () if start is None else (int(start),)
        self.inputs_seen = 0
        self.inputs_cut = 0
        self.inputs_lost = 0
        self.segments_unread = 0
        self._cache = _pieces_of(tokenizer)

    def encode(self, parts: Sequence[InputParts]) -> list[EncodedInput]:
        """Token ids of inputs, in order.

        Raises:
            DataError: an input does not fit even without its passages, and `too_long` is `refuse`; or its question
                leaves no room for an answer (`room`).
        """
        self._tokenise([piece for item in parts for piece in (*_pieces(item), *self._sentences(item))])
        encoded = [self._assemble(item) for item in parts]
        self._count(encoded)
        return encoded

    def room(self, item: InputParts) -> int:
        """Tokens that are left for passages and answer behind what stands before them; below 0 where that is too long.

        A segment needs two at least, its separator and a token; a whole answer one.
        """
        self._tokenise([item.before])
        return self._between(item) - len(self._cache[item.before])

    def _end(self, item: InputParts) -> tuple[int, ...]:
        """The ids that end an input: one separator, but none behind a whole answer that a causal model pads with it."""
        return () if self.causal and not item.segments and self.sep_id == self.pad_id else (self.sep_id,)

    def _between(self, item: InputParts) -> int:
        """Tokens that fit between the start and the end of an input."""
        return self.max_length - len(self._start) - len(self._end(item))

    def _tokenise(self, pieces: Sequence[str]) -> None:
        """Put the ids of all `pieces` into the cache."""
        if len(self._cache) > _CACHED_PIECES:
            self._cache.clear()
        missing = list(dict.fromkeys(piece for piece in pieces if piece not in self._cache))
        if missing:
            self._cache.update(zip(missing, map(tuple, plain_token_ids(self.tokenizer, missing)), strict=True))

    def _assemble(self, item: InputParts) -> EncodedInput:
        before, context, after, *segments = (self._cache[piece] for piece in _pieces(item))
        between = self._between(item)
        spare = between - len(before) - len(segments)
        room = spare - len(after) - sum(map(len, segments))
        lost, unread = max(0, -room), 0
        if room < 0:
            readable = max(0, spare + len(segments)) // 2  # a separator and a token each
            whole = not (segments or context or after)  # an answer behind no passages is the end of `before`
            if self.too_long == "refuse" or (spare < 0 and not whole and not min(readable, len(segments))):
                raise DataError(
                    f"an input needs {self.max_length - room} tokens without its passages, the reward model reads at "
                    f"most {self.max_length}: {item.before[:60]!r}"
                )
            room = 0
            if spare < 0:
                unread = max(0, len(segments) - readable)
                before, segments = before[:between], segments[:readable]
                spare = between - len(before) - len(segments)
            after, *segments = _shortened([after, *segments], spare)
        kept = self._kept(item, context, room if self.passage_tokens is None else min(room, self.passage_tokens))
        ids = [*self._start, *before, *kept, *after]
        separators = []
        for segment in segments:
            separators.append(len(ids))
            ids += [self.sep_id, *segment]
        if self.causal and separators:
            separators = [*separators[1:], len(ids)]
        counts = () if self.counts is None else word_counts(self.counts, item)[: len(separators) or 1]
        cut = len(context) - len(kept)
        return EncodedInput((*ids, *self._end(item)), tuple(separators), cut, lost, unread, counts)

    def _sentences(self, item: InputParts) -> list[str]:
        """The sentences to choose from, each with its leading space; none where the passages' beginning is read."""
        return [] if self.passages == "first" else [f" {sentence}" for sentence in sentences_of(item.context)]

    def _kept(self, item: InputParts, context: tuple[int, ...], room: int) -> Sequence[int]:
        """The ids of the passages that are read, at most `room`."""
        if len(context) <= room or self.passages == "first":
            return context[:room]
        sentences = self._sentences(item)
        ids = [self._cache[sentence] for sentence in sentences]
        kept = choose(sentences, [len(part) for part in ids], selection_words(item, self.passages), room)
        return [token for i in kept for token in ids[i]]

    def _count(self, encoded: Sequence[EncodedInput]) -> None:
        """Warn the first time that passages are cut, and whenever ten times as many have been."""
        cut = [item.cut for item in encoded if item.cut]
        before = self.inputs_cut
        self.inputs_seen += len(encoded)
        self.inputs_cut += len(cut)
        if cut and len(str(self.inputs_cut)) > len(str(before)) * bool(before):
            logger.warning(
                "%d of %d reward-model inputs were longer than %d tokens; the end of their passages is left out "
                "(up to %d tokens here)",
                self.inputs_cut,
                self.inputs_seen,
                self.max_length,
                max(cut),
            )
        lost = [item.lost for item in encoded if item.lost]
        lost_before = self.inputs_lost
        self.inputs_lost += len(lost)
        self.segments_unread += sum(item.unread for item in encoded)
        if lost and len(str(self.inputs_lost)) > len(str(lost_before)) * bool(lost_before):
            logger.warning(
                "%d of %d reward-model inputs were longer than %d tokens even without their passages; they are scored "
                "without the end of their longest segments (up to %d tokens here), and %d segments not at all",
                self.inputs_lost,
                self.inputs_seen,
                self.max_length,
                max(lost),
                self.segments_unread,
            )


def _shortened(pieces: Sequence[tuple[int, ...]], room: int) -> list[tuple[int, ...]]:
    """The pieces, the longest of them cut to one common length, so that together they have at most `room` tokens."""
    low, high = 0, room
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(min(len(p), middle) for p in pieces) <= room else (low, middle - 1)
    return [piece[:low] for piece in pieces]


def _pieces(item: InputParts) -> list[str]:
    """The strings that are tokenised: before, context, after, then the segments."""
    spaced = [f" {text}" if text else "" for text in (item.context, item.after, *item.segments)]
    return [item.before, *spaced]
