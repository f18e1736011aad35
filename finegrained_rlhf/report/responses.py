"""Responses with their segment rewards and token numbers, and how a text is cut for colouring.

Knows the files `samples/*.jsonl`; offsets are in Unicode code points, as everywhere in the project. Knows no HTML.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.report.html import is_number

QUANTITIES = ("advantage", "reward", "value", "kl")
"""Numbers of a token, in the order in which they are shown."""


@dataclass(frozen=True)
class Segment:
    """One value of one component.

    Attributes:
        component: its name.
        start: first character.
        end: one past the last character.
        raw: the scorer's value.
        weighted: what entered the reward.
    """

    component: str
    start: int
    end: int
    raw: float
    weighted: float


@dataclass(frozen=True)
class Tokens:
    """Numbers of a response's T tokens.

    Attributes:
        ends: character at which each ends [T]; not decreasing.
        numbers: by quantity, a number a token [T] (nats for `kl`).
    """

    ends: Sequence[int]
    numbers: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Response:
    """One response.

    Attributes:
        id: of the prompt.
        sample: its number among the prompt's.
        prompt: the prompt's text.
        text: the response.
        segments: of all components.
        tokens: None in files of earlier versions.
    """

    id: str
    sample: int
    prompt: str
    text: str
    segments: Sequence[Segment]
    tokens: Tokens | None

    def totals(self, component: str) -> tuple[float, float]:
        """Sum of the component's raw and weighted values."""
        mine = [segment for segment in self.segments if segment.component == component]
        return sum(s.raw for s in mine), sum(s.weighted for s in mine)

    @property
    def total(self) -> float:
        """Sum of all weighted values."""
        return sum(segment.weighted for segment in self.segments)


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


def read_responses(path: Path) -> list[Response]:
    """Read a file of responses.

    Raises:
        DataError: a field is missing or of another type, or an offset lies outside its text.
    """
    found = []
    for number, row in enumerate(read_jsonl(path)):
        try:
            found.append(_response(row))
        except DataError as error:
            raise error.at(file=path, record=number) from None
    return found


def cut(text: str, segments: Sequence[Segment], ends: Sequence[int] = ()) -> list[Piece]:
    """Cut a text at every end of a token and of a segment. The pieces cover the text once, in order.

    Args:
        text: a response.
        segments: of any components.
        ends: where each token ends; tokens without characters at the end of the text make a last, empty piece.
    """
    points = {0, len(text), *(end for end in ends if end <= len(text))}
    points |= {point for segment in segments for point in (segment.start, segment.end)}
    borders = sorted(points)
    pieces: list[Piece] = []
    given = 0  # tokens that are over and shown
    for start, end in zip(borders, borders[1:], strict=False):
        token = bisect_right(ends, start)
        pieces.append(Piece(start, end, tuple(range(given, min(token + 1, len(ends))))))
        given = token + 1 if token < len(ends) and ends[token] == end else token
    if given < len(ends):
        pieces.append(Piece(len(text), len(text), tuple(range(given, len(ends)))))
    return pieces


def _response(row: Mapping[str, Any]) -> Response:
    text = _field(row, "response", str)
    tokens = row.get("tokens")
    segments = _field(row, "segments", list)
    return Response(
        id=str(row.get("id", "")),
        sample=row["sample"] if isinstance(row.get("sample"), int) else 0,
        prompt=_field(row, "prompt", str),
        text=text,
        segments=[_segment(s, text, f"segments[{i}]") for i, s in enumerate(segments)],
        tokens=None if tokens is None else _tokens(tokens, text),
    )


def _field(row: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(row.get(name), kind):
        raise DataError(f"expected a {kind.__name__}, got {type(row.get(name)).__name__}", field=name)
    return row[name]


def _segment(row: Any, text: str, where: str) -> Segment:
    if not isinstance(row, Mapping):
        raise DataError("expected an object", field=where)
    start, end = row.get("start"), row.get("end")
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= len(text)):
        raise DataError(f"expected 0 <= start <= end <= {len(text)}, got {start!r} and {end!r}", field=where)
    for name in ("raw", "weighted"):
        if not is_number(row.get(name)):
            raise DataError(f"expected a finite number, got {row.get(name)!r}", field=f"{where}.{name}")
    return Segment(str(row.get("component", "")), start, end, float(row["raw"]), float(row["weighted"]))


def _tokens(row: Any, text: str) -> Tokens:
    ends = row.get("ends") if isinstance(row, Mapping) else None
    if not isinstance(ends, list) or not all(isinstance(end, int) and 0 <= end <= len(text) for end in ends):
        raise DataError(f"expected a list of offsets from 0 to {len(text)}", field="tokens.ends")
    if sorted(ends) != ends:
        raise DataError("expected offsets that do not decrease", field="tokens.ends")
    numbers = {name: row[name] for name in QUANTITIES if name in row}
    for name, values in numbers.items():
        if not isinstance(values, list) or len(values) != len(ends) or not all(map(is_number, values)):
            raise DataError(f"expected a list of {len(ends)} finite numbers", field=f"tokens.{name}")
    return Tokens(ends, numbers)
