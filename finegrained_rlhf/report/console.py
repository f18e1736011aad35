"""Every run below a directory with its state: what `finegrained runs` builds and runs; and tables for a console."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TextIO

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.report.elements.html import number
from finegrained_rlhf.report.runs.state import RunState, read_state
from finegrained_rlhf.runtime.console import in_words
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

HEAD = ("run", "state", "why", "step", "exported", "score", "age")
_LOG_WIDTH = 100_000  # columns: no cell of a log is cut
_WITHIN_A_RUN = ("checkpoints", "policy", "model", "samples", "locks")


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], words: int = 1, stream: TextIO | None = None
) -> None:
    """Print a table: drawn on a terminal, aligned columns without a frame elsewhere.

    Args:
        head: column titles.
        rows: cells; shown as text, never read as markup.
        words: so many columns on the left hold words; numbers follow, aligned on the right.
        stream: where to; None is standard output.
    """
    from rich.box import HEAVY_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = stream if stream is not None else sys.stdout
    table = Table(box=HEAVY_HEAD if out.isatty() else None, pad_edge=False)
    for i, title in enumerate(head):
        table.add_column(Text(title), justify="left" if i < words else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(" ".join(str(cell).split())) for cell in row))
    console = Console(file=out, width=None if out.isatty() else _LOG_WIDTH)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()), file=out)


class Runs:
    """List every run below a directory, the one that changed last at the top.

    Args:
        directory: where to look; a run itself counts.
        format: `table`, or `json` for one object a line (`run` and the fields of `RunState`).

    Raises:
        ConfigError: an unknown format.
    """

    def __init__(self, directory: InputFile = ".", format: Literal["table", "json"] = "table") -> None:
        if format not in ("table", "json"):
            raise ConfigError(f"format: expected table or json, got {format!r}")
        self.directory, self.format = Path(directory), format

    def run(self) -> None:
        """Look at every run and print them.

        Raises:
            DataError: there is no such directory.
        """
        if not self.directory.is_dir():
            raise DataError("no such directory; expected one with runs below it", file=self.directory)
        now = time.time()
        states = {path: read_state(path, now) for path in runs_below(self.directory)}
        ordered = sorted(states.items(), key=lambda item: (-item[1].changed, str(item[0])))
        if self.format == "json":
            for path, state in ordered:
                print(json.dumps({"run": str(path), **asdict(state)}, ensure_ascii=False))
        elif ordered:
            print_table(HEAD, [_row(self._name(path), state, now) for path, state in ordered], words=3)
        else:
            print(f"no runs below {self.directory}", file=sys.stderr)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.directory)) if path != self.directory else str(path)


def runs_below(directory: Path) -> Iterator[Path]:
    """Every run directory at or below `directory`; runs may lie within others (`points/NAME`). No link is followed."""
    for folder, children, _ in os.walk(directory):
        path = Path(folder)
        is_run = RunDirectory(path).is_run()
        if is_run:
            yield path
        hidden = [name for name in children if name.startswith(".")]
        children[:] = sorted(set(children) - set(hidden) - set(_WITHIN_A_RUN if is_run else ()))


def _row(name: str, state: RunState, now: float) -> list[str]:
    """The cells of a run: a state that is only guessed has a question mark."""
    status = f"{state.status}?" if state.status == "running" and not state.locked else state.status
    step = "–" if state.step is None else str(state.step)
    total = "" if state.total_steps is None else f"/{state.total_steps}"
    exported = "–" if state.exported is None else str(state.exported)
    age = in_words(max(now - state.changed, 0.0)) if state.changed else "–"
    return [name, status, state.stop_reason or "", f"{step}{total}", exported, number(state.score), age]
