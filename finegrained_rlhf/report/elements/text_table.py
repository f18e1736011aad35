"""Tables for a console: drawn on a terminal where rich is installed, plain aligned lines elsewhere."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], words: int = 1, stream: TextIO | None = None
) -> None:
    """Print a table.

    Args:
        head: column titles.
        rows: cells; shown as text, never read as markup.
        words: so many columns on the left hold words; numbers follow, aligned on the right.
        stream: where to; None is standard output.
    """
    out = stream if stream is not None else sys.stdout
    if out.isatty() and _drawn(head, rows, words, out):
        return
    print("\n".join(plain_table(head, rows, words)), file=out)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[Any]], words: int = 1) -> list[str]:
    """The lines of a table for a log: columns two spaces apart, as wide as their widest cell."""
    lines = [[_one_line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(head))]
    shown = []
    for line in lines:
        cells = []
        for i, (cell, width) in enumerate(zip(line, widths, strict=True)):
            gap = " " * (width - _width(cell))
            cells.append(cell + gap if i < words else gap + cell)
        shown.append("  ".join(cells).rstrip())
    return shown


def _drawn(head: Sequence[str], rows: Sequence[Sequence[Any]], words: int, out: TextIO) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(pad_edge=False)
    for i, title in enumerate(head):
        table.add_column(Text(title), justify="left" if i < words else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_one_line(cell)) for cell in row))
    Console(file=out).print(table)
    return True


def _one_line(cell: Any) -> str:
    return " ".join(str(cell).split())


def _width(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)
