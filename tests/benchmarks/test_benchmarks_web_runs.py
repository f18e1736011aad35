"""The benchmark of the web application's pages, end to end on small runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from script_runs import ROOT, run_script


def test_pages_of_runs_end_to_end(tmp_path: Path) -> None:
    words = ["runs=3", "steps=200", f"out={tmp_path / 'web.json'}"]
    done = run_script(str(ROOT / "benchmarks/web_runs.py"), *words)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "web.json").read_text())
    assert (found["runs"], found["steps"]) == (3, 200) and 200 * 1000 < found["metrics_bytes_a_run"] < 200 * 4000
    assert list(found["pages"]) == [
        f"{page}_{n}" for page in ("table", "run", "side_by_side") for n in ("first", "again")
    ]
    assert all(seconds > 0 for page in found["pages"].values() for seconds in page.values())
