"""Towers of dense passage retrieval: an encoder of queries and one of passages, whose `[CLS]` vectors are compared.

Source: Karpukhin et al. 2020, section 3; the form of queries is INSCIT's (thesis, chapter 5).

`[SEP]` between turns and between titles is the tokenizer's own separator token, whatever it is called there. All token
types are 0, as in the code of the paper, whose checkpoints therefore read passages as they were trained to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.core.records import on_device, pad_rows
from finegrained_rlhf.dialogue.records import PART_SEPARATOR
from finegrained_rlhf.models.encoders.model import EncoderModel, input_limit, open_encoder
from finegrained_rlhf.models.loading import load_tokenizer, model_directory
from finegrained_rlhf.text.plain_text import plain_token_ids

QUERY_TOWER, PASSAGE_TOWER = "query", "passage"
"""Directories of the two towers, side by side."""


class TextTower(EncoderModel):
    """One tower: an encoder and how it reads queries or passages.

    Args:
        network: transformers' encoder without a head.
        tokenizer: of the network, with class, separator and padding token.
        max_length: longest input in tokens, special tokens included.
    """

    def __init__(self, network: Any, tokenizer: Any, max_length: int) -> None:
        super().__init__(tokenizer)
        self.model, self.max_length = network, max_length

    @property
    def network(self) -> Any:
        """The encoder."""
        return self.model

    @property
    def dimension(self) -> int:
        """Of the vectors."""
        return int(self.model.config.hidden_size)

    @classmethod
    def open(cls, path: ModelName | Path, max_length: int, tower: str = QUERY_TOWER) -> TextTower:
        """The tower of a directory, a run or a Hub name, fp32, on the CPU, in evaluation mode.

        Args:
            path: where it is.
            max_length: longest input in tokens; an encoder that takes less cuts earlier.
            tower: `query` or `passage`: which one of a run that holds both.

        Raises:
            ModelError: it is missing, damaged or no encoder, or its tokenizer lacks a special token.
        """
        directory = model_directory(path, f"model/{tower}")
        network, tokenizer = open_encoder(directory), load_tokenizer(directory)
        for name in ("cls_token_id", "sep_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is None:
                raise ModelError(f"{directory}: the tokenizer has no {name.removesuffix('_id')}, which a tower needs")
        return cls(network, tokenizer, input_limit(network.config, tokenizer, max_length))

    def query_ids(self, queries: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
        """Token ids of queries: `[CLS] turn [SEP] turn … [SEP]`, cut by `fitting_turns`.

        Args:
            queries: of each, its turns, oldest first; at least one.
        """
        rows = iter(self._plain([turn for turns in queries for turn in turns]))
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        ids = []
        for turns in queries:
            kept = fitting_turns([next(rows) for _ in turns], self.max_length - 2)
            ids.append((start, *_joined(kept, end), end))
        return ids

    def passage_ids(self, passages: Sequence[tuple[str, str]]) -> list[tuple[int, ...]]:
        """Token ids of passages: `[CLS] title [SEP] text [SEP]`, without a title `[CLS] text [SEP]`.

        What is too long loses the end of its text; a title has at most half of the tokens, or what the text leaves.

        Args:
            passages: (title, text) pairs; titles that are joined by `[SEP]` are read as several.
        """
        titles = [title.split(PART_SEPARATOR) if title.strip() else [] for title, _ in passages]
        parts = iter(self._plain([part for title in titles for part in title]))
        texts = self._plain([text for _, text in passages])
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        ids = []
        for title, text in zip(titles, texts, strict=True):
            room = self.max_length - 2 - bool(title)
            named = _joined([next(parts) for _ in title], end)[: max(room // 2, room - len(text))]
            ids.append((start, *named, *([end] if title else []), *text[: room - len(named)], end))
        return ids

    def forward(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The `[CLS]` vectors of inputs, fp32 [n, dimension] on the tower's device.

        Args:
            rows: token ids of n inputs, n ≥ 1.
        """
        ids, mask = pad_rows(rows, self.pad_id)
        device = self.device
        hidden = self.model(input_ids=on_device(ids, device), attention_mask=on_device(mask, device)).last_hidden_state
        return hidden[:, 0].float()

    @torch.no_grad()
    def vectors(self, rows: Sequence[Sequence[int]], batch_size: int) -> Tensor:
        """As `by_length`, without a gradient."""
        return self.by_length(rows, batch_size)

    def by_length(self, rows: Sequence[Sequence[int]], batch_size: int) -> Tensor:
        """As `forward` of any number of inputs, those of similar length together: fp32 [n, dimension]."""
        vectors = torch.zeros(len(rows), self.dimension, device=self.device)
        for places in length_groups([len(row) for row in rows], batch_size, batch_overhead(self.device)):
            vectors[places] = self([rows[i] for i in places])
        return vectors

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        return plain_token_ids(self.tokenizer, texts)


class TwoTowers(nn.Module):
    """A tower of queries and one of passages.

    Args:
        query: reads queries.
        passage: reads passages; its vectors are as long as the query's.

    Raises:
        ModelError: they are not.
    """

    def __init__(self, query: TextTower, passage: TextTower) -> None:
        super().__init__()
        if query.dimension != passage.dimension:
            raise ModelError(
                f"the query tower gives vectors of {query.dimension} numbers, that of passages {passage.dimension}: "
                "expected two of one width"
            )
        self.query, self.passage = query, passage

    @classmethod
    def open(
        cls,
        query: ModelName | Path,
        passage: ModelName | Path,
        max_query_tokens: int,
        max_passage_tokens: int,
    ) -> TwoTowers:
        """Two towers from their directories, runs or Hub names (see `TextTower.open`)."""
        return cls(
            TextTower.open(query, max_query_tokens, QUERY_TOWER),
            TextTower.open(passage, max_passage_tokens, PASSAGE_TOWER),
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.query.device

    def save(self, directory: Path) -> None:
        """Write both as ordinary Hugging Face directories, `query/` and `passage/`."""
        for tower, name in ((self.query, QUERY_TOWER), (self.passage, PASSAGE_TOWER)):
            tower.save(directory / name)


def fitting_turns(turns: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """The turns of a query that fit: the newest, the first, and then the most recent ones without a gap.

    A newest turn that is too long loses its end; the first one loses its end where the newest leaves less room. From
    the turn before the newest backwards, turns are kept whole until one does not fit.

    Args:
        turns: token ids of each, oldest first; at least one.
        limit: tokens in all, with one separator between two turns that are kept.

    Returns:
        The kept turns, oldest first.
    """
    newest = list(turns[-1][:limit])
    room = limit - len(newest) - 1
    if len(turns) == 1 or room < 1:
        return [newest]
    first = list(turns[0][:room])
    room -= len(first)
    recent: list[list[int]] = []
    for turn in reversed(turns[1:-1]):
        if len(turn) + 1 > room:
            break
        recent.insert(0, list(turn))
        room -= len(turn) + 1
    return [first, *recent, newest]


def _joined(parts: Sequence[Sequence[int]], separator: int) -> list[int]:
    """All parts in a row with the separator between two."""
    joined = list(parts[0]) if parts else []
    for part in parts[1:]:
        joined += [separator, *part]
    return joined
