"""Where each sampled token ends in the decoded text, and which token ends a segment.

The map is built from the sampled ids and never by tokenising the text again: a policy may sample ids that its tokenizer
would not produce. Knows a tokenizer's `decode` only; does not know models, rewards or how segments are cut.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from finegrained_rlhf.core.errors import AlignmentError
from finegrained_rlhf.text.segmentation import Span


class Decoder(Protocol):
    """The one method of a Hugging Face tokenizer that alignment needs."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """The text of `token_ids`."""
        ...


def decode_text(tokenizer: Decoder, ids: Sequence[int]) -> str:
    """The text of `ids` as everything in this project reads it: no special tokens, no cleaning of spaces."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def token_ends(tokenizer: Decoder, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The decoded text of `ids` and the character offset at which each of them ends.

    Token t ends where the text of ids[: t + 1] stops agreeing with the whole text. That is the length of the former
    unless it ends inside a character (some of the bytes of "é" decode to U+FFFD until the rest comes: these tokens end
    before the character, the one that completes it ends after it).

    Args:
        tokenizer: a Hugging Face tokenizer.
        ids: any ids, special ones anywhere among them.

    Returns:
        The text, and len(ids) offsets into it: not decreasing, the last one len(text). A token without characters
        (a special token, an unfinished character) has the offset of the token before it.
    """
    if not len(ids):
        return "", ()
    ids = list(ids)
    text = decode_text(tokenizer, ids)
    ends: list[int] = []
    reached = 0
    for stop in range(1, len(ids)):
        prefix = decode_text(tokenizer, ids[:stop])
        agreed = len(prefix) if text.startswith(prefix) else len(os.path.commonprefix([prefix, text]))
        reached = max(reached, agreed)
        ends.append(reached)
    return text, (*ends, len(text))


def segment_end_tokens(ends: Sequence[int], spans: Sequence[Span]) -> tuple[int, ...]:
    """The token in which each segment's last character lies: the first one that ends at or after the segment's end.

    Args:
        ends: the offset at which each token ends, from `token_ends`.
        spans: character spans of the segments.

    Raises:
        AlignmentError: a span is empty or reversed, or ends after the last token.
    """
    tokens = []
    for start, end in spans:
        if not 0 <= start < end:
            raise AlignmentError(f"segment {start}:{end} is empty or reversed")
        token = bisect_left(ends, end)
        if token == len(ends):
            raise AlignmentError(
                f"segment {start}:{end} ends after the last token, which ends at {max(ends, default=0)}"
            )
        tokens.append(token)
    return tuple(tokens)


@dataclass(frozen=True)
class AlignmentAudit:
    """How many segments end at exactly one response token.

    Attributes:
        segments: segments looked at.
        exact: those whose last character lies in exactly one token.
    """

    segments: int
    exact: int

    @property
    def share(self) -> float:
        """Share of exact segments; 1.0 when there is no segment."""
        return self.exact / self.segments if self.segments else 1.0

    def __add__(self, other: AlignmentAudit) -> AlignmentAudit:
        """Both audits together."""
        return AlignmentAudit(self.segments + other.segments, self.exact + other.exact)

    def __str__(self) -> str:
        return f"{self.exact} of {self.segments} segments end at exactly one response token ({self.share:.2%})"


def audit_alignment(
    texts: Sequence[str], ends: Sequence[Sequence[int]], spans_per_text: Sequence[Sequence[Span]]
) -> AlignmentAudit:
    """Count the segments whose last character lies in exactly one token, looking at every token of its text.

    Args:
        texts: R decoded responses.
        ends: R token-end offsets.
        spans_per_text: R segmentations.

    Raises:
        AlignmentError: the three do not have one length.
    """
    if not len(texts) == len(ends) == len(spans_per_text):
        raise AlignmentError(f"{len(texts)} texts, {len(ends)} token maps and {len(spans_per_text)} segmentations")
    segments = exact = 0
    for text, row, spans in zip(texts, ends, spans_per_text, strict=True):
        starts = [0, *row[:-1]]
        for start, end in spans:
            holders = sum(first < end <= last for first, last in zip(starts, row, strict=True)) if row else 0
            segments += 1
            exact += holders == 1 and 0 <= start < end <= len(text) and row[-1] == len(text)
    return AlignmentAudit(segments, exact)
