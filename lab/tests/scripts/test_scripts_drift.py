"""The shortest real run of `finegrained measure-drift`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_rlhf.core.files import read_json

pytestmark = pytest.mark.scripts


@pytest.fixture
def run(smoke: Path, tmp_path: Path) -> Path:
    """A copy of a PPO run with random reward models."""
    return Path(shutil.copytree(smoke, tmp_path / "run"))


def test_drift_of_a_run(run: Path) -> None:
    finished = run_script("measure_drift", f"run={run}")
    assert finished.returncode == 0, finished.stderr
    report = read_json(run / "drift.json")
    assert set(report["components"]) == {"relevance", "factuality", "completeness"} and not report["not_comparable"]
    for name in ("relevance", "factuality"):
        assert [row["step"] for row in report["components"][name]] == [1, 2, 3, 4]
    for row in report["components"]["relevance"]:  # the babble of random models: every sub-sentence is incoherent
        assert row["errors"] == row["items"] > 0 and row["agreement"] == row["recall"]
    assert "| step | component" in finished.stdout and f"report: {run / 'drift.json'}" in finished.stdout
