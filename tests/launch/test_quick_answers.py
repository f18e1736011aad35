"""What needs no model answers at once: modules that it imports are counted, since seconds depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra._internal import config_loader_impl

from finegrained_rlhf.launch.app import run_command

HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "numpy",
    "pandas",
    "scipy",
    "sklearn",
    "tqdm",
    "pydantic",
    "attr",
)
MOST = 520
"""Modules of everything, Hydra's and Python's own included (about 480 today)."""
ASKED = """
import json, sys
from finegrained_rlhf.launch.commands import main
try:
    main(sys.argv[0])
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
    ("command", "words"),
    [("train_ppo", ("--help",)), ("train_ppo", ("experiment=smoke", "ppo.epoch=2")), ("sweep", ("--help",))],
)
def test_help_and_a_misspelt_key_import_schemas_alone(tmp_path: Path, command: str, words: tuple[str, ...]) -> None:
    imported = modules(tmp_path, command, *words)
    assert not imported & {*HEAVY} and len(imported) < MOST


def test_a_list_of_runs_needs_no_torch(tmp_path: Path) -> None:
    imported = modules(tmp_path, "runs", "directory=.", "format=json")
    assert "finegrained_rlhf.report.runs.state" in imported
    assert not imported & {"torch", "transformers", "accelerate", "numpy"} and len(imported) < MOST + 40


@pytest.fixture
def compositions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with every composition: the name of the configuration."""
    monkeypatch.chdir(tmp_path)
    composed, choose = list[str](), config_loader_impl.create_defaults_list

    def counted(*arguments: Any, **options: Any) -> Any:
        composed.append(options["config_name"])
        return choose(*arguments, **options)

    monkeypatch.setattr(config_loader_impl, "create_defaults_list", counted)
    return composed


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("train_ppo", ("--help",), "ppo.kl.beta: "),
        ("train_ppo", ("experiment=smoke", "ppo.epoch=2"), "unknown key 'ppo.epoch'; did you mean ppo.epochs?"),
        ("train_ppo", ("experiment=smoke", "seed=1,2"), "Ambiguous value for argument 'seed=1,2'"),
        ("runs", ("directory=.",), "no runs below ."),
    ],
)
def test_a_command_line_is_composed_once(
    compositions: list[str], capsys: pytest.CaptureFixture[str], command: str, words: tuple[str, ...], said: str
) -> None:
    call(command, *words)
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert compositions == [command]


def test_a_mode_of_hydra_is_kept(compositions: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Several values of a key make a multirun where the line says so without `--multirun`."""
    for name in ("a", "b"):
        Path(name).mkdir()
    call("runs", "directory=a,b", "hydra.mode=MULTIRUN")
    shown = capsys.readouterr()
    assert all(f"no runs below {name}" in shown.out + shown.err for name in ("a", "b")), shown
    assert len(compositions) > 2


def call(command: str, *words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [command, *words])
        try:
            run_command(command)
        except SystemExit:
            pass
