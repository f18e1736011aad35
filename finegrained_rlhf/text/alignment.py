"""Where each sampled token ends in the decoded text, and which token ends a segment.

The map is built from the sampled ids and never by tokenising the text again: a policy may sample ids that its tokenizer
would not produce. Knows a tokenizer's `decode`, and its streaming form where it has one; does not know models, rewards
or how segments are cut.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from finegrained_rlhf.core.errors import AlignmentError
from finegrained_rlhf.text.segmentation import Span

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


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
    before the character, the one that completes it ends after it). Fast tokenizers are asked for one token after the
    other, in time proportional to len(ids); prefixes are decoded where that could differ.

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
    return text, _streamed_ends(tokenizer, ids, text) or _ends_of_prefixes(tokenizer, ids, text)


def _streamed_ends(tokenizer: Decoder, ids: Sequence[int], text: str) -> tuple[int, ...] | None:
    """The ends from one pass over the ids; None where that may say something else than the prefixes do.

    A stream holds back what ends with U+FFFD until more comes: a token after which it gives nothing ends where its
    prefix says, and texts that have a U+FFFD of their own are left to the prefixes altogether.
    """
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer) or "\ufffd" in text:
        return None
    stream, ends, given = DecodeStream(skip_special_tokens=True), [0], ""
    try:
        for stop, token in enumerate(ids, start=1):
            piece = stream.step(backend, token)
            given += piece or ""
            ends.append(max(ends[-1], len(given) if piece else _agreed(tokenizer, ids[:stop], text)))
    except Exception:  # the library's own class, for a decoder whose texts do not continue each other
        return None
    return (*ends[1:-1], len(text)) if text.startswith(given) else None


def _ends_of_prefixes(tokenizer: Decoder, ids: Sequence[int], text: str) -> tuple[int, ...]:
    """The ends by their definition, which decodes every prefix."""
    agreed = (_agreed(tokenizer, ids[:stop], text) for stop in range(1, len(ids)))
    return (*accumulate(agreed, max), len(text))


def _agreed(tokenizer: Decoder, ids: Sequence[int], text: str) -> int:
    """How many characters the text of `ids` and `text` begin with in common."""
    prefix = decode_text(tokenizer, ids)
    return len(prefix) if text.startswith(prefix) else len(os.path.commonprefix([prefix, text]))


def byte_tokens(tokenizer: Any) -> frozenset[int]:
    """The ids of tokens that are one byte of a character (`<0xE2>`), as vocabularies of sentencepiece have them.

    A run of them is decoded as a whole, so what the first of them give may change until another token follows. Tokens
    of byte-level vocabularies are none of these.
    """
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    return frozenset(number for token, number in vocabulary.items() if _BYTE.fullmatch(token))


def settled_ends(
    text: str, ends: Sequence[int], ids: Sequence[int] = (), unsettled: Collection[int] = ()
) -> tuple[int, ...]:
    """How much of a response stands after each of its T tokens, whatever tokens follow.

    It ends before white space, before the bytes of a character that is not finished (U+FFFD), and before a run of
    `byte_tokens`. So `text[:settled[t]]` is a function of the tokens up to t alone.

    Args:
        text: the response.
        ends: where each token ends (`token_ends`).
        ids: T token ids; needed where there are byte tokens.
        unsettled: the byte tokens.

    Returns:
        T numbers of characters, not decreasing.
    """
    settled, stands = [], 0
    for token, end in enumerate(ends):
        if not unsettled or ids[token] not in unsettled:
            while end > stands and (text[end - 1].isspace() or text[end - 1] == "\ufffd"):
                end -= 1
            stands = max(stands, end)
        settled.append(stands)
    return tuple(settled)


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
        exact: those whose last character comes with the token that the map names, and with no earlier one.
        inside: those that end inside that token: it carries characters behind the segment too.
    """

    segments: int
    exact: int
    inside: int = 0

    @property
    def share(self) -> float:
        """Share of exact segments; 1.0 when there is no segment."""
        return self.exact / self.segments if self.segments else 1.0

    @property
    def inside_share(self) -> float:
        """Share of segments that end inside a token; 0.0 when there is no segment."""
        return self.inside / self.segments if self.segments else 0.0

    def __add__(self, other: AlignmentAudit) -> AlignmentAudit:
        """Both audits together."""
        return AlignmentAudit(self.segments + other.segments, self.exact + other.exact, self.inside + other.inside)

    def __str__(self) -> str:
        return (
            f"{self.exact} of {self.segments} segments end at exactly one response token ({self.share:.2%}), "
            f"{self.inside} inside it ({self.inside_share:.2%})"
        )


def audit_alignment(
    texts: Sequence[str],
    ends: Sequence[Sequence[int]],
    spans_per_text: Sequence[Sequence[Span]],
    *,
    tokenizer: Decoder | None = None,
    ids: Sequence[Sequence[int]] | None = None,
) -> AlignmentAudit:
    """Count the segments whose last character comes with exactly the token that the map names.

    With tokenizer and ids this is decided by decoding: the tokens up to and with the named one must give the segment's
    last character, those before it must not. Without them only the map's form is checked (offsets that do not decrease
    and end with the text; segments inside the text), which a wrong map may have too.

    Args:
        texts: R decoded responses.
        ends: R token-end offsets.
        spans_per_text: R segmentations.
        tokenizer: that decoded the texts.
        ids: R rows of token ids, as many in each as it has offsets.

    Raises:
        AlignmentError: the lists do not have one length.
    """
    if not len(texts) == len(ends) == len(spans_per_text) == (len(texts) if ids is None else len(ids)):
        raise AlignmentError(f"{len(texts)} texts, {len(ends)} token maps and {len(spans_per_text)} segmentations")
    audit = AlignmentAudit(0, 0)
    for row, (text, offsets, spans) in enumerate(zip(texts, ends, spans_per_text, strict=True)):
        given = None if tokenizer is None or ids is None else (tokenizer, ids[row])
        audit += _audit_row(text, offsets, spans, given)
    return audit


def _audit_row(
    text: str, ends: Sequence[int], spans: Sequence[Span], given: tuple[Decoder, Sequence[int]] | None
) -> AlignmentAudit:
    sound = bool(len(ends)) and ends[-1] == len(text) and list(ends) == sorted(ends)
    sound = sound and (given is None or len(given[1]) == len(ends))
    if not sound:
        return AlignmentAudit(len(spans), 0)
    exact = inside = 0
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            continue
        token = bisect_left(ends, end)
        inside += end < ends[token]
        exact += given is None or _reached(*given, token, text) < end <= _reached(*given, token + 1, text)
    return AlignmentAudit(len(spans), exact, inside)


def _reached(tokenizer: Decoder, ids: Sequence[int], count: int, text: str) -> int:
    """How many characters of `text` the first `count` tokens give."""
    return len(os.path.commonprefix([decode_text(tokenizer, ids[:count]), text])) if count else 0
