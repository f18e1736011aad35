"""The five usual changes, made in a copy of the project as CONTRIBUTING says: each works there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from script_runs import ROOT, run_script

COPIED = (
    "finegrained_rlhf",
    "reward_models",
    "conf",
    "benchmarks/gpu",
    "benchmarks/__init__.py",
    "tests/helpers",
    "lab",
)
CHANGES = ("A key", "A reward", "An algorithm", "A family of models", "A world")
_BLOCK = re.compile(r"^```(diff|python|yaml)\n(?:diff|#) (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """What stands below a heading of the page, up to the next one of its level or above."""
    (found,) = re.findall(rf"^### {title}\n(.*?)(?=^##)", _PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def changed(text: str, hunks: str) -> str:
    """A text with hunks of a diff applied: `@@` lies between them, and each is found by its lines, once."""
    for hunk in hunks.split("@@\n"):
        lines = [line if line != "\n" else " \n" for line in hunk.splitlines(keepends=True)]
        before = "".join(line[1:] for line in lines if line[0] != "+")
        assert text.count(f"\n{before}") == 1, f"it is there {text.count(before)} times:\n{before}"
        text = text.replace(f"\n{before}", "\n" + "".join(line[1:] for line in lines if line[0] != "-"))
    return text


def make_change(title: str, tree: Path) -> list[str]:
    """Make a change in a tree. Returns its files."""
    files = []
    for kind, name, body in _BLOCK.findall(section(title)):
        path = tree / name
        if kind == "diff":
            path.write_text(changed(path.read_text(encoding="utf-8"), body), encoding="utf-8")
        else:
            assert not path.exists(), f"{name} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        files.append(name)
    return files


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all five changes."""
    directory = tmp_path_factory.mktemp("contributed")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name)
        else:
            shutil.copy2(ROOT / name, directory / name)
    for title in CHANGES:
        assert make_change(title, directory), title
    return directory


def run_command(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the tree."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "lab")])}
    command = [sys.executable, "-m", "finegrained_rlhf", *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120)


def works(tree: Path, change: str) -> None:
    """See that a change does what it is for (`tests/helpers/contributed.py`)."""
    done = run_script(str(tree / "tests/helpers/contributed.py"), change, cwd=tree)
    assert done.returncode == 0, done.stderr


def test_the_page_has_these_changes() -> None:
    assert tuple(re.findall(r"^### (.*)$", _PAGE, re.MULTILINE)) == CHANGES


def test_a_key_is_explained_and_refused_where_it_is_wrong(tree: Path) -> None:
    told = run_command(tree, "train-ppo", "--help")
    assert told.returncode == 0 and re.search(r"reward_limit.*cut to ± this", told.stdout, re.DOTALL)
    refused = run_command(tree, "train-ppo", "experiment=smoke", "ppo.reward_limit=-1")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("error: ppo.reward_limit: ") and "above 0" in refused.stderr


@pytest.mark.parametrize("change", ["key", "reward", "algorithm", "family"])
def test_it_works(tree: Path, change: str) -> None:
    works(tree, change)


def test_a_world_is_made_by_its_command(tree: Path) -> None:
    done = run_command(tree, "make-sum-world", "output_dir=sums", "train=5", "test=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "5 train, 2 test -> sums"
    assert {path.name for path in (tree / "sums").iterdir()} >= {"train.jsonl", "test.jsonl", "manifest.json"}
    assert "make-sum-world" in run_command(tree, "--help").stdout
