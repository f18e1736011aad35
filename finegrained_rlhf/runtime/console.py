"""What a job shows on the console: progress bars, the last training step, and where a stream of results goes.

Standard error is for people: a table of the last step where it is a terminal and `rich` is installed, a plain line a
step elsewhere. Standard output is for results.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.files import atomic_path

T = TypeVar("T")
STANDARD_OUTPUT = "-"
"""The `output` that means standard output."""
PLAIN_SECONDS = 10.0
"""Seconds between two plain lines; the first and the last step always have one."""
BAR_SECONDS = 0.1
"""Seconds between two states of a bar."""
_SHOWN = ("loss", "reward/total", "kl", "score", "lr")
_FORM = {
    "kl": ("KL", "nats an answer"),
    "response_length": ("length", "tokens"),
    "eos_rate": ("answers that end", "share"),
    "repetition": ("repeated 3-grams", "share"),
    "entropy": ("entropy", "nats a token"),
    "loss": ("loss", ""),
    "lr": ("learning rate", ""),
}


@contextmanager
def writable(output: str) -> Iterator[TextIO]:
    """Standard output for `-`, else a file that appears when the block ends well."""
    if output == STANDARD_OUTPUT:
        yield sys.stdout
        return
    with atomic_path(output) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        yield stream


class ProgressBar:
    """How far some work is, on standard error; a context manager around it.

    A terminal gets a bar that `rich` draws. A log gets a plain line every ten seconds, and none of shorter work; so
    does a terminal where rich is not installed.

    Attributes:
        done: how many are done.

    Args:
        what: is done; plain text.
        total: how many there are; None where nobody knows.
        units: what is counted, in the plural; `bytes` are shown in MB.
        shown: False shows nothing.
        done: how many an earlier start did.
        after_s: seconds of work before a bar appears.
    """

    def __init__(
        self, what: str, total: int | None, units: str, shown: bool = True, *, done: int = 0, after_s: float = 0.0
    ) -> None:
        self.done, self._first, self._total = done, done, total
        self._what, self._units, self._shown, self._after_s = what, units, shown, after_s
        self._started = self._next = 0.0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        if self._shown and sys.stderr.isatty():
            self._bar, self._task = _drawn_bar(self._what, self._total)
        self._started = time.monotonic()
        self._next = self._started + (PLAIN_SECONDS if self._bar is None else self._after_s)
        self.update(0)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None and self._bar.live.is_started:
            self._show(time.monotonic())
            self._bar.stop()

    def update(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        if self._shown and (now := time.monotonic()) >= self._next:
            self._show(now)

    def _show(self, now: float) -> None:
        if self._bar is not None:
            self._bar.start()
            self._bar.update(self._task, completed=self.done, counted=self._counted())
            self._next = now + BAR_SECONDS
            return
        rate = (self.done - self._first) / (now - self._started)
        left = f", {in_words((self._total - self.done) / rate)} left" if self._total and rate else ""
        print(f"{self._what}: {self._counted()}{left}", file=sys.stderr, flush=True)
        self._next = now + PLAIN_SECONDS

    def _counted(self) -> str:
        counts = [count for count in (self.done, self._total) if count is not None]
        if self._units == "bytes":
            return " of ".join(f"{count / 1e6:,.0f} MB" for count in counts)
        return f"{' of '.join(f'{count:,}' for count in counts)} {self._units}"


def tracked(
    items: Iterable[T], what: str, total: int, units: str, shown: bool = True, after_s: float = 0.0
) -> Iterator[T]:
    """The items one by one under a `ProgressBar`."""
    with ProgressBar(what, total, units, shown, after_s=after_s) as bar:
        for item in items:
            yield item
            bar.update()


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Shows, on a terminal, one line of standard error at a time; an empty one clears it. A log gets none."""

    def show(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        show("")


class TrainingProgress:
    """The progress of a training run on standard error; a context manager around the loop.

    Args:
        total: training steps of the whole run.
        done: steps that an earlier start made.
        shown: False (every process but the main one) shows nothing.
        stream: where to; None is standard error.
        clock: seconds, for the time left.
    """

    def __init__(
        self, total: int, done: int = 0, *, shown: bool = True, stream: TextIO | None = None, clock: Any = None
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._total, self._first, self._done, self._shown = total, done, done, shown
        self._clock = clock or time.monotonic
        self._started = self._printed = self._clock()
        self._live: Any = None
        self._moved: list[tuple[logging.StreamHandler[Any], Any]] = []

    def __enter__(self) -> TrainingProgress:
        self._started = self._printed = self._clock()
        if self._shown and self._stream.isatty():
            self._live = _live_display(self._stream)
        if self._live is not None:
            self._live.start()
            self._live.update(_table(self._headline(), {}), refresh=True)  # the first step may take a while
            self._move_messages()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved = []

    def _move_messages(self) -> None:
        """Messages go above the table: the display takes the place of sys.stderr, but handlers hold the old one."""
        for handler in logging.getLogger().handlers:
            if type(handler) is logging.StreamHandler and handler.stream is self._stream:
                self._moved.append((handler, handler.stream))
                handler.setStream(sys.stderr)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last step at the mean speed since this start; None before its first step."""
        made = self._done - self._first
        if made < 1:
            return None
        return (self._clock() - self._started) / made * max(self._total - self._done, 0)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished training step."""
        self._done = step
        if not self._shown:
            return
        if self._live is not None:
            self._live.update(_table(self._headline(), metrics), refresh=True)
            return
        first, now = step == self._first + 1, self._clock()
        if first or step >= self._total or now - self._printed >= PLAIN_SECONDS:
            self._printed = now
            print(plain_line(self._headline(), metrics), file=self._stream, flush=True)

    def _headline(self) -> str:
        left = self.seconds_left
        until = "" if left is None or self._done >= self._total else f", {in_words(left)} left"
        return f"step {self._done} of {self._total}{until}"


def plain_line(headline: str, metrics: Mapping[str, float]) -> str:
    """One line of a step for a log: the headline and the metrics that every trainer has."""
    shown = [f"{key} {metrics[key] + 0.0:.4g}" for key in _SHOWN if is_number(metrics.get(key))]
    rate = tokens_per_second(metrics)
    return "  ".join([f"training: {headline}", *shown, *([f"{rate:,.0f} tokens/s"] if rate is not None else [])])


def step_rows(metrics: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """What the table of a step shows, a (name, value, unit) each: rewards by component, form, speed."""
    rows = []
    for key, value in metrics.items():
        name, _, kind = key.removeprefix("reward/").rpartition("/")
        if key.startswith("reward/") and kind == "raw" and is_number(value):
            weighted = metrics.get(f"reward/{name}/weighted")
            unit = f"weighted {weighted:+.3f}" if is_number(weighted) else ""
            rows.append((f"reward: {name}", f"{value:+.3f}", unit))
    if is_number(metrics.get("reward/total")):
        rows.append(("reward: weighted total", f"{metrics['reward/total']:+.3f}", "an answer, without KL"))
    rows += [(word, f"{metrics[k]:.4g}", unit) for k, (word, unit) in _FORM.items() if is_number(metrics.get(k))]
    if (rate := tokens_per_second(metrics)) is not None:
        rows.append(("speed", f"{rate:,.0f}", "tokens a second"))
    if is_number(metrics.get("time/step_s")):
        rows.append(("time of the step", f"{metrics['time/step_s']:.1f}", "s"))
    return rows


def tokens_per_second(metrics: Mapping[str, float]) -> float | None:
    """Response tokens of a step by its wall-clock seconds; None where the metrics do not say."""
    keys = ("response_length", "episodes_per_step", "time/step_s")
    length, episodes, seconds = (metrics.get(key) for key in keys)
    if not (is_number(length) and is_number(episodes) and is_number(seconds)) or not seconds:
        return None
    return float(length) * float(episodes) / float(seconds)  # type: ignore[arg-type]


def in_words(seconds: float) -> str:
    """Seconds in the unit that suits them: 40 s, 12 min, 3.5 h, 2.1 days."""
    for size, unit in ((86_400, "days"), (3600, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _live_display(stream: TextIO) -> Any:
    """A display that redraws itself in place; None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    return Live(console=Console(file=stream), auto_refresh=False, transient=False)


def _drawn_bar(what: str, total: int | None) -> tuple[Any, Any]:
    """A bar that is not shown yet, and its task; None where rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError:
        return None, None
    name, counted = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[counted]"))
    columns = (name, BarColumn(), counted, TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(file=sys.stderr), redirect_stdout=False)
    return bar, bar.add_task(what, total=total, counted="")


def _table(headline: str, metrics: Mapping[str, float]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=headline, title_justify="left", show_header=False, pad_edge=False)
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("unit", style="dim")
    for row in step_rows(metrics):
        table.add_row(*map(Text, row))  # names of components are text, never markup
    return table
