"""Progress on a terminal and in a log: what is shown of a step, the time left, and no rich where it is not needed."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from finegrained_rlhf.runtime import console
from finegrained_rlhf.runtime.console import (
    ProgressBar,
    TrainingProgress,
    in_words,
    status_line,
    step_rows,
    tokens_per_second,
    tracked,
    writable,
)

METRICS = {
    "reward/relevance/raw": 1.5,
    "reward/relevance/weighted": 0.45,
    "reward/[bold]x[/bold]/raw": -2.0,
    "reward/total": 0.25,
    "kl": 1.25,
    "response_length": 20.0,
    "episodes_per_step": 64.0,
    "time/step_s": 4.0,
    "lr": float("nan"),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that goes on by so many seconds whenever it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_table_of_a_step_has_rewards_by_component_form_and_speed() -> None:
    assert step_rows(METRICS) == [
        ("reward: relevance", "+1.500", "weighted +0.450"),
        ("reward: [bold]x[/bold]", "-2.000", ""),
        ("reward: weighted total", "+0.250", "an answer, without KL"),
        ("KL", "1.25", "nats an answer"),
        ("length", "20", "tokens"),
        ("speed", "320", "tokens a second"),  # 64 answers of 20 tokens in 4 s
        ("time of the step", "4.0", "s"),
    ]
    assert tokens_per_second({"response_length": 3.0}) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(40, "40 s"), (89, "89 s"), (720, "12 min"), (12600, "3.5 h"), (181440, "2.1 days")]
)
def test_times_are_said_in_the_unit_that_suits_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_the_time_left_counts_the_steps_of_this_start_only() -> None:
    clock = Clock()
    with TrainingProgress(10, 4, shown=False, clock=clock) as progress:
        assert progress.seconds_left is None
        clock.now += 6
        progress.step(6, {})
        assert progress.seconds_left == pytest.approx(12.0)  # two steps took 6 s, four are left
        progress.step(10, {})
        assert progress.seconds_left == 0.0


def test_a_log_gets_plain_lines_now_and_then() -> None:
    clock, log = Clock(), io.StringIO()
    with TrainingProgress(100, stream=log, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 1
            progress.step(step, METRICS)
    lines = log.getvalue().splitlines()
    assert lines[0] == "training: step 1 of 100, 2 min left  reward/total 0.25  kl 1.25  320 tokens/s"
    assert len(lines) == 11 and lines[-1].startswith("training: step 100 of 100  reward/total")
    assert "\x1b" not in log.getvalue()


def test_a_terminal_gets_a_table_and_messages_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        with TrainingProgress(8, stream=terminal) as progress:
            progress.step(1, METRICS)
            assert handler.stream is not terminal  # the display writes it above the table
            logging.getLogger().warning("a message")
            progress.step(2, METRICS)
        assert handler.stream is terminal and sys.stderr is terminal
    finally:
        logging.getLogger().removeHandler(handler)
    shown = terminal.getvalue()
    assert shown.index("step 0 of 8") < shown.index("step 1 of 8")
    assert "step 2 of 8" in shown and "[bold]x[/bold]" in shown and "tokens a second" in shown
    assert shown.index("a message") < shown.rindex("step 2 of 8")


def test_other_processes_show_nothing() -> None:
    terminal = Terminal()
    with TrainingProgress(2, shown=False, stream=terminal) as progress:
        progress.step(1, METRICS)
    assert terminal.getvalue() == ""


def test_without_rich_a_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal = Terminal()
    with TrainingProgress(2, stream=terminal) as progress:
        progress.step(1, METRICS)
    assert terminal.getvalue().startswith("training: step 1 of 2")


def test_a_log_gets_a_line_of_work_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(console.time, "monotonic", clock)
    with ProgressBar("searching", 2000, "queries", done=1000) as bar:
        for _batch in range(10):
            clock.now += 4
            bar.update(40)
    assert bar.done == 1400
    assert capsys.readouterr().err.splitlines() == [
        "searching: 1,120 of 2,000 queries, 88 s left",  # 10 a second, and 880 of the 2,000 are left
        "searching: 1,240 of 2,000 queries, 76 s left",
        "searching: 1,360 of 2,000 queries, 64 s left",
    ]
    with ProgressBar("checking", None, "bytes") as bar, ProgressBar("hidden", 1, "x", False) as hidden:
        clock.now += 20
        bar.update(3_000_000)
        hidden.update()
    assert capsys.readouterr().err == "checking: 3 MB\n"


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_gets_a_bar_with_the_work_as_text(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert list(tracked("abc", "[bold]work[/bold]", 3, "letters")) == ["a", "b", "c"]
    assert ("[bold]work[/bold]" in terminal.getvalue()) is rich
    assert ("3 of 3 letters" in terminal.getvalue()) is rich
    before = terminal.getvalue()
    assert list(tracked("ab", "short", 2, "letters", after_s=60.0)) == ["a", "b"]
    assert terminal.getvalue() == before
    with status_line() as show:
        show("checking the policy …")
    assert terminal.getvalue() == before + "\r\x1b[Kchecking the policy …\r\x1b[K"


def test_importing_the_console_imports_no_rich() -> None:
    code = f"import sys, {console.__name__}; print(sorted(m for m in sys.modules if m.partition('.')[0] == 'rich'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr


def test_a_file_appears_only_when_all_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with pytest.raises(RuntimeError), writable(str(path)) as stream:
        stream.write("half")
        raise RuntimeError
    assert not path.exists() and list(tmp_path.iterdir()) == []
    with writable(str(path)) as stream:
        stream.write("whole")
    assert path.read_text() == "whole"
