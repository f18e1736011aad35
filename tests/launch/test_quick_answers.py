"""What needs no model answers at once: modules that it imports are counted, since seconds depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "accelerate", "datasets", "numpy", "pandas", "scipy", "sklearn", "tqdm", "pydantic")
MOST = 520
"""Modules of everything, Hydra's and Python's own included (about 480 today)."""
ASKED = """
import json, sys
from finegrained_rlhf.launch.app import run_command
try:
    run_command(sys.argv[0])
except SystemExit:
    pass
sys.stderr.write("\\n" + json.dumps(sorted(sys.modules)))
"""


def modules(tmp_path: Path, command: str, *words: str) -> set[str]:
    """What a command imports until it has answered."""
    code = f"import sys\nsys.argv = {[command, *words]!r}\n{ASKED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("command", "words"), [("train_ppo", ("--help",)), ("train_ppo", ("experiment=smoke", "ppo.epoch=2"))]
)
def test_help_and_a_misspelt_key_import_schemas_alone(tmp_path: Path, command: str, words: tuple[str, ...]) -> None:
    imported = modules(tmp_path, command, *words)
    assert not imported & {*HEAVY} and len(imported) < MOST


def test_a_list_of_runs_needs_no_torch(tmp_path: Path) -> None:
    imported = modules(tmp_path, "runs", "directory=.", "format=json")
    assert "finegrained_rlhf.report.runs.state" in imported
    assert not imported & {"torch", "transformers", "accelerate", "numpy"} and len(imported) < MOST + 40
