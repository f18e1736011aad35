"""How the text of a response is cut for colouring: at the ends of its tokens and of its segments.

Offsets are in Unicode code points, as everywhere in the project.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from finegrained_rlhf.runtime.directory.samples import OracleMark, SampleSegment


@dataclass(frozen=True)
class Piece:
    """A stretch of text in which nothing changes: inside one token and one segment of each component.

    Attributes:
        start: first character.
        end: one past the last; equals `start` for tokens without characters at the end of the text.
        tokens: the token it lies in, after tokens without characters that come right before it.
    """

    start: int
    end: int
    tokens: tuple[int, ...]


def cut(text: str, segments: Sequence[SampleSegment | OracleMark], ends: Sequence[int] = ()) -> list[Piece]:
    """Cut a text where a token, a segment or an oracle's mark ends. The pieces cover the text once, in order.

    Args:
        text: a response.
        segments: of any components, and marks.
        ends: where each token ends; tokens without characters at the end of the text make a last, empty piece.
    """
    points = {0, len(text), *(end for end in ends if end <= len(text))}
    points |= {point for segment in segments for point in (segment.start, segment.end)}
    borders = sorted(points)
    pieces: list[Piece] = []
    shown = 0  # tokens that are over and shown
    for start, end in zip(borders, borders[1:], strict=False):
        token = bisect_right(ends, start)
        pieces.append(Piece(start, end, tuple(range(shown, min(token + 1, len(ends))))))
        shown = token + 1 if token < len(ends) and ends[token] == end else token
    if shown < len(ends):
        pieces.append(Piece(len(text), len(text), tuple(range(shown, len(ends)))))
    return pieces
