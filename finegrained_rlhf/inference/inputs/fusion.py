"""Prompts in pieces for fusion-in-decoder: the question, or the conversation, with one passage each.

How pieces are encoded is `models/families/pieces.py`. Sources: Izacard and Grave (2021); thesis ch. 5 and INSCIT's
reader for conversations.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.prompt_files import PromptInput
from finegrained_rlhf.text.chat import FusionConfig
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.text.templates import context_text, conversation_text, evidence_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pieces:
    """The pieces of one prompt.

    Attributes:
        heads: what each piece begins with, whole and then shorter and shorter; at least one.
        passages: what each piece goes on with; a prompt without passages has one piece, its head.
    """

    heads: tuple[str, ...]
    passages: tuple[str, ...]

    def texts(self, head: int = 0) -> list[str]:
        """All pieces."""
        return [self.text(passage, head) for passage in self.passages] or [self.heads[head]]

    def text(self, passage: str, head: int) -> str:
        """One piece, by one of the heads."""
        return f"{self.heads[head]} {passage}"


def fused_prompts(
    items: Sequence[PromptInput], tokenizer: Any, max_tokens: int, refuse: bool, config: FusionConfig
) -> list[Prompt]:
    """Prompts whose passages are encoded one by one.

    Args:
        items: with `question` or `turns`, and `passages`, in their metadata.
        tokenizer: of the policy.
        max_tokens: longest piece in tokens.
        refuse: raise where a piece is longer, instead of cutting it.
        config: how many passages, and how they are cut.

    Raises:
        DataError: a prompt has no question, or a piece is too long and not to be cut.
    """
    cut = [_pieces(item, config.passages) for item in items]
    texts = [text for pieces in cut for text in pieces.texts()]
    rows = iter(plain_token_ids(tokenizer, texts, add_special_tokens=True) if texts else ())
    fitter = _Fitter(tokenizer, max_tokens, config.passage_tokens)
    prompts = []
    for item, pieces in zip(items, cut, strict=True):
        ids = [next(rows) for _ in pieces.texts()]
        longest = max(map(len, ids))
        if longest > max_tokens and refuse:
            problem = f"a piece of the prompt has {longest} tokens, the limit is {max_tokens}"
            raise DataError(f"{problem} (prompt_too_long=truncate cuts it)", record=item.id, field="passages")
        ids = fitter.fit(pieces, ids)
        flat = tuple(token for piece in ids for token in piece)
        prompts.append(Prompt(item.id, item.text, flat, item.metadata, pieces=tuple(map(len, ids))))
    left_out = sum(max(len(item.metadata["passages"]) - config.passages, 0) for item in items)
    if left_out:
        logger.warning("%d passages beyond the first %d of their prompts are not read", left_out, config.passages)
    fitter.warn(len(texts))
    return prompts


def _pieces(item: PromptInput, most: int) -> _Pieces:
    known = item.metadata
    if "passages" not in known:
        problem = "prompts that are read in pieces (prompt.fusion) need a question, or turns, and passages"
        raise DataError(problem, record=item.id, field="passages")
    passages = known["passages"][:most]
    turns = known.get("turns")
    if turns is None:
        return _Pieces((f"question: {known['question']}",), tuple(f"context: {context_text([p])}" for p in passages))
    evidence = tuple(map(evidence_text, passages))
    if len(turns) == 1:
        return _Pieces((conversation_text(turns),), evidence)
    later = range(1, len(turns))
    heads = tuple(conversation_text(turns, [0, *range(start, len(turns))]) for start in later)
    return _Pieces(heads, evidence)


class _Fitter:
    """Shortens the pieces of prompts to the limit, and counts what they lose."""

    def __init__(self, tokenizer: Any, limit: int, least: int) -> None:
        self._tokenizer, self._limit, self._least = tokenizer, limit, least
        self._special = len(plain_token_ids(tokenizer, [""], add_special_tokens=True)[0])
        self.cut = self.without_turns = 0

    def fit(self, pieces: _Pieces, ids: list[list[int]]) -> list[list[int]]:
        """Token ids of each piece, none longer than the limit.

        Args:
            pieces: of one prompt.
            ids: of the pieces as they are.
        """
        long = [i for i, row in enumerate(ids) if len(row) > self._limit]
        if not long:
            return ids
        heads = [len(row) for row in plain_token_ids(self._tokenizer, list(pieces.heads))]
        shorter = []
        for i in long:
            least = min(self._least, len(ids[i]) - self._special - heads[0]) if pieces.passages else 0
            room = self._limit - self._special - least
            chosen = next((h for h, length in enumerate(heads) if length <= room), len(heads) - 1)
            self.without_turns += chosen > 0
            shorter.append(pieces.text(pieces.passages[i], chosen) if pieces.passages else pieces.heads[chosen])
        tokenized = plain_token_ids(self._tokenizer, shorter, add_special_tokens=True, max_length=self._limit)
        self.cut += len(long)
        rows = dict(zip(long, tokenized, strict=True))
        return [rows.get(i, row) for i, row in enumerate(ids)]

    def warn(self, count: int) -> None:
        """Say how many of so many pieces were shortened, if any were."""
        if self.cut:
            message = "%d of %d pieces are longer than %d tokens: cut; %d of them lost earlier utterances"
            logger.warning(message, self.cut, count, self._limit, self.without_turns)
