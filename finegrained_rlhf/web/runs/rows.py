"""Metrics of a run that may be training, read as they grow: what was read stays, and a long file is read in part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number

KEPT = 500
"""Lines that are kept of a file, at least; from twice as many on, every second one is let go."""
_BLOCK = 8 * 2**20


class GrowingRows:
    """The lines of one JSON-lines file of metrics, evenly thinned: every `stride`-th, and the last one.

    A curve draws 240 points, so that a file of 10,000 steps need not be parsed whole. A file that became shorter or was
    replaced (a run that was resumed) is read from its beginning.

    Args:
        path: of the file; it may be absent.
        kept: see `KEPT`.

    Attributes:
        stride: so many lines apart are those that are kept.
        count: whole lines that were seen.
        damaged: lines that are no JSON object with a step, among those that were read.
    """

    def __init__(self, path: Path, kept: int = KEPT) -> None:
        self.path, self._kept = path, kept
        self._identity: tuple[int, int] | None = None
        self._start_over()

    def _start_over(self) -> None:
        self.stride, self.count, self.damaged, self._offset = 1, 0, 0, 0
        self._rows: list[tuple[int, dict[str, Any]]] = []
        self._last: dict[str, Any] | None = None

    def read(self) -> list[dict[str, Any]]:
        """What is kept now, by step; reads what was added since the last call. Empty where there is no file."""
        try:
            with open(self.path, "rb") as stream:
                status = os.fstat(stream.fileno())
                identity = status.st_dev, status.st_ino
                if identity != self._identity or status.st_size < self._offset:
                    self._identity = identity
                    self._start_over()
                stream.seek(self._offset)
                self._read_blocks(stream)
        except OSError:
            self._start_over()
        rows = [row for _, row in self._rows]
        if self._last is not None and (not rows or rows[-1] is not self._last):
            rows.append(self._last)
        return sorted(rows, key=lambda row: row["step"])

    def _read_blocks(self, stream: Any) -> None:
        rest = b""
        while block := stream.read(_BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            self._take([line for line in lines if line.strip()])
            self._offset += sum(map(len, lines)) + len(lines)

    def _take(self, lines: list[bytes]) -> None:
        """Whole lines: those at multiples of the stride and the last one are parsed."""
        if not lines:
            return
        while (self.count + len(lines)) // self.stride >= 2 * self._kept:
            self.stride *= 2
        self._rows = [(number, row) for number, row in self._rows if number % self.stride == 0]
        first = -self.count % self.stride
        for place in range(first, len(lines), self.stride):
            if (row := self._parsed(lines[place])) is not None:
                self._rows.append((self.count + place, row))
        on_stride = (self.count + len(lines) - 1) % self.stride == 0
        last = self._rows[-1][1] if on_stride and self._rows else self._parsed(lines[-1])
        self._last = last or self._last
        self.count += len(lines)

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and is_number(row.get("step")):
            return row
        self.damaged += 1
        return None
