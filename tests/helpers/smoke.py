"""`experiment=smoke`, prepared and run once for all tests and all xdist workers."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
from script_runs import run_script

COMPONENTS = ("relevance", "factuality", "completeness")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A directory that the first worker to ask makes, and that all of them read.

    Args:
        factory: of temporary directories.
        name: of the directory, one for each way to make it.
        make: fills the directory, which does not exist yet.
    """
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base  # xdist: one base a worker, below a common one
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / f"{name}.made").is_file():
            make(shared / name)
            (shared / f"{name}.made").touch()
    return shared / name


def run_smoke(directory: Path) -> None:
    """World, models, reward models and all four steps, as the README has it."""
    done = run_script("train_ppo", "experiment=smoke", f"output_dir={directory}")
    assert done.returncode == 0, done.stderr
    assert "100.00%" in done.stderr  # alignment


def keys_of(run: Path) -> list[str]:
    """What points `experiment=smoke` at the world and the models of a run, so that it prepares nothing."""
    prepared = run / "prepared"
    return [
        "prepare=null",
        f"data={prepared}/world/train.json",
        f"validation_data={prepared}/world/dev.json",
        f"policy.path={prepared}/models/t5",
        f"value.path={prepared}/models/t5",
        *(f"reward.components.{name}.path={prepared}/reward_models/{name}" for name in COMPONENTS),
    ]
