"""The rehearsal of a paper's pipeline: steps are timed, one is killed with its children, and the command goes on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.rehearsal import Watched, resident, size
from finegrained_rlhf.core.errors import FineGrainedError

PIPELINE = """
import pathlib, subprocess, sys, time
place = pathlib.Path(sys.argv[1])
for number, name in enumerate(("store", "bm25", "scores"), 1):
    what, made = f"[seed 0, step {number} of 3: {name}]", place / name
    if made.exists():
        print(what, "is done", flush=True)
        continue
    print(f"{what} a command", flush=True)
    if name == "bm25" and not (place / "begun").exists():
        (place / "begun").write_text("half")
        subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(0.6)
    made.write_bytes(bytes(1000))
    time.sleep(0.6)
"""


def test_a_step_is_killed_and_the_command_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PIPELINE, str(tmp_path)]
    first = Watched(words, tmp_path)
    assert first.wait({"bm25"}, 0.5) == "2 bm25"
    assert [one.step for one in first.measured] == ["1 store"] and first.skipped == 0
    deadline = time.monotonic() + 10  # the killed session's last process may be there for a moment
    while resident(first.session) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert resident(first.session) == 0
    second = Watched(words, tmp_path)
    assert second.wait(set(), 0.5) is None
    assert [one.step for one in second.measured] == ["2 bm25", "3 scores"] and second.skipped == 1
    assert all(one.seconds > 0.5 and one.peak_bytes > 1e6 for one in second.measured)
    assert sum(one.disk_bytes for one in second.measured) == 2000 and size(tmp_path) == 3004


def test_a_pipeline_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FineGrainedError, match="ended with 3: not today"):
        Watched([sys.executable, "-c", "import sys; print('not today', file=sys.stderr); sys.exit(3)"], tmp_path).wait(
            set(), 1
        )
