"""The state of runs as their directories tell it, the list of them, and runs compared as text."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_toy import write_checkpoint
from report_toy import write_toy_run
from script_runs import run_script

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.launch.plain_words import with_keys
from finegrained_rlhf.report.console import Runs, print_table, runs_below
from finegrained_rlhf.report.runs.state import read_state
from finegrained_rlhf.report.write import Compare

LATER = time.time() + 3600


def checkpoint(run: Path, step: int, **state: Any) -> Path:
    """A checkpoint as the training loop writes it."""
    return write_checkpoint(run, step, **state)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_toy_run(tmp_path / "run")


def test_a_finished_run(run: Path) -> None:
    checkpoint(run, 6, best_step=4, best_score=2.0)
    write_json(run / "policy/export.json", {"step": 4, "score": 2.0})
    state = read_state(run, LATER)
    assert (state.status, state.step, state.total_steps, state.exported, state.score) == ("finished", 6, 6, 4, 2.0)
    assert not state.locked and state.stop_reason is None


def test_a_run_that_was_stopped_early_says_why(run: Path) -> None:
    checkpoint(run, 4, stop_reason="KL exceeded 10.0 nats")
    assert (read_state(run, LATER).status, read_state(run, LATER).stop_reason) == (
        "stopped early",
        "KL exceeded 10.0 nats",
    )


def test_a_run_that_was_killed_can_be_resumed_and_a_damaged_checkpoint_does_not_count(run: Path) -> None:
    checkpoint(run, 2)
    (checkpoint(run, 4) / "weights").write_bytes(b"1")
    state = read_state(run, LATER)
    assert (state.status, state.step) == ("resumable", 6)  # the metrics know more than the last whole checkpoint
    (run / "checkpoints/step_2/manifest.json").unlink()
    state = read_state(run, LATER)
    assert state.status == "damaged" and state.stop_reason == "none of the 2 checkpoints is whole"


def test_a_run_at_work_holds_its_lock(run: Path) -> None:
    checkpoint(run, 2)
    lock = run / ".lock"
    lock.write_text("process 1")
    assert read_state(run, LATER).status == "resumable"  # left over: nobody holds it
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys\nlock = open(sys.argv[1])\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
            "print(1, flush=True)\nsys.stdin.read()",
            str(lock),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        state = read_state(run, LATER)
        assert state.status == "running" and state.locked
    finally:
        holder.kill()
        holder.wait()
    assert read_state(run, LATER).status == "resumable"
    with open(lock) as file:  # looking leaves no lock behind
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_run_that_changed_just_now_may_be_at_work(run: Path) -> None:
    checkpoint(run, 2)
    assert read_state(run).status == "running" and not read_state(run).locked


@pytest.mark.parametrize("content", ["[1]", "{", "\x00", ""])
def test_a_broken_configuration_is_no_crash(run: Path, content: str) -> None:
    checkpoint(run, 2)
    (run / "config.yaml").write_text(content)
    state = read_state(run, LATER)
    assert state.status == "damaged" and "config.yaml" in str(state.stop_reason)


def test_runs_without_checkpoints(run: Path, tmp_path: Path) -> None:
    assert read_state(run, LATER).status == "finished"  # all steps, a policy; its checkpoints were removed
    (run / "policy/export.json").unlink()
    (run / "policy").rmdir()
    assert read_state(run, LATER).status == "not resumable"
    (tmp_path / "new").mkdir()
    (tmp_path / "new/config.yaml").write_text("total_steps: 3\n")
    assert read_state(tmp_path / "new", LATER).status == "not started"


def test_every_run_below_a_directory_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "sweep"
    for name, hours in (("old", 5), ("new", 2)):
        run = write_toy_run(sweep / "points" / name)
        checkpoint(run, 6 if name == "old" else 4, stop_reason=None if name == "old" else "KL exceeded")
        write_toy_run(run / "checkpoints/copy")  # within a run: not another one
        for path in (*run.rglob("*"), run):
            os.utime(path, (time.time() - 3600 * hours,) * 2)
    (tmp_path / "no run").mkdir()
    write_toy_run(tmp_path / ".hidden")
    assert list(runs_below(tmp_path)) == [sweep / "points/new", sweep / "points/old"]
    Runs(str(tmp_path)).run()
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [
        ["run", "state", "why", "step", "exported", "score", "age"],
        ["sweep/points/new", "stopped early", "KL exceeded", "6/6", "4", "–", "2.0 h"],
        ["sweep/points/old", "finished", "6/6", "4", "–", "5.0 h"],
    ]
    Runs(str(tmp_path), "json").run()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["status"] for row in found] == ["stopped early", "finished"]
    with pytest.raises(DataError, match="no such directory"):
        Runs(str(tmp_path / "nowhere")).run()
    with pytest.raises(ConfigError, match="format: expected table or json"):
        Runs(".", "xml")  # type: ignore[arg-type]
    Runs(str(tmp_path / "no run")).run()
    assert "no runs below" in capsys.readouterr().err


def test_runs_are_compared_as_text(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_toy_run(tmp_path / "other")
    config = json.loads((other / "config.yaml").read_text())
    config["reward"]["weights"]["relevance"] = 0.9
    write_json(other / "config.yaml", config)
    write_json(other / "policy/export.json", {"step": 0})
    Compare([str(run), str(other)]).run()
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["Configuration", "key run other"] and "reward.weights.relevance 0.5 0.9" in lines
    assert "policy step 4, exported step 0, exported = initial policy" in lines
    assert "factual error rate 0.500 0.200 0.500" in lines
    assert "weighted total (by each run's own reward) – 2.000 0.500" in lines
    assert "other: exported the initial policy: no later validation scored higher" in lines
    assert lines[-1] == "The rewards differ: weighted totals are in different units."
    for wrong in ([], [str(run)], [str(run), f"{run}/."]):
        with pytest.raises(ConfigError, match="runs: expected two or more"):
            Compare(wrong).run()


def test_tables_are_plain_in_a_log_and_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    rows = [["日本", 1, "[red]x[/red]"], ["a\nb", 12, ""]]
    log, terminal = io.StringIO(), Terminal()
    print_table(["name", "n", "w"], rows, stream=log)
    assert log.getvalue().splitlines() == ["name   n             w", "日本   1  [red]x[/red]", "a b   12"]
    monkeypatch.setenv("TERM", "xterm")
    print_table(["name", "n", "w"], rows, stream=terminal)
    assert "[red]x[/red]" in terminal.getvalue() and terminal.getvalue().splitlines()[0].startswith("┏")


def test_plain_words_are_given_to_a_key() -> None:
    assert with_keys(["outputs"], "directory") == ["directory='outputs'"]
    assert with_keys(["--help"], "directory") == ["--help"]
    assert with_keys(["format=json", "a b"], "directory") == ["format=json", "directory='a b'"]
    assert with_keys(["x/a", "+y=1", "b,c"], "runs", several=True) == ["+y=1", "runs=['x/a','b,c']"]


@pytest.mark.scripts
def test_one_command_each(tmp_path: Path) -> None:
    for name in ("a", "b c"):
        write_toy_run(tmp_path / name)
    for arguments, told in ((["runs", str(tmp_path)], "b c"), (["compare", "a", "b c"], "Configuration: the same")):
        done = run_script(*arguments, cwd=tmp_path)
        assert done.returncode == 0 and told in done.stdout, done.stderr
