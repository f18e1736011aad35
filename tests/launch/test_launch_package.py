"""What an installed wheel brings: the console command, and the configurations inside the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from finegrained_rlhf.launch.commands import NAMES, conf_directory, overview

ROOT = Path(__file__).parents[2]


def test_each_command_has_a_configuration_and_a_script() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
    assert all((conf_directory() / f"{name}.yaml").is_file() for name in NAMES)
    assert len(set(NAMES)) == len(NAMES)


def test_the_overview_lists_every_command() -> None:
    listed = re.findall(r"^  ([a-z-]+)  ", overview(), re.MULTILINE)
    assert listed == [name.replace("_", "-") for name in NAMES]


def test_no_page_and_no_message_names_a_package_that_is_on_no_index() -> None:
    """Anyone could register the name; a checkout is what there is to install from."""
    told = []
    for folder in ("finegrained_rlhf", "reward_models", "scripts", "benchmarks", "docs", "conf"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".yaml") and re.search(
                r"finegrained-rlhf\[|pip install (-\S+ )*finegrained", path.read_text(encoding="utf-8")
            ):
                told.append(path)
    assert told == []


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CALL = {"capture_output": True, "text": True, "check": True, "timeout": 240}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that git knows or would take."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    tracked = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, **CALL)
    for name in tracked.stdout.split("\0"):
        if re.match(r"(finegrained_rlhf|reward_models|conf)/|[^/]+\.(toml|py|md|in)$|LICENSE$", name):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(source)]
    subprocess.run(build, **CALL)
    (made,) = directory.glob("*.whl")
    return made


@pytest.mark.scripts
def test_a_wheel_brings_the_configurations_and_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    held = set(archive.namelist())
    assert {"finegrained_rlhf/py.typed", "reward_models/py.typed"} <= held
    assert not any(name.startswith(("scripts/", "conf/", "tests/")) for name in held)
    yamls = {f"finegrained_rlhf/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert {name for name in held if name.startswith("finegrained_rlhf/conf/")} == yamls
    (entries,) = [name for name in held if name.endswith("/entry_points.txt")]
    assert "finegrained = finegrained_rlhf.launch" in archive.read(entries).decode()


@pytest.mark.slow
@pytest.mark.scripts
def test_the_command_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    subprocess.run([*PIP, "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)], **CALL)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, str(target / "bin" / "finegrained")]
    there = {**CALL, "cwd": elsewhere, "env": {**os.environ, "PYTHONPATH": str(target)}}
    explained = subprocess.run([*command, "train-ppo", "--help"], **there).stdout
    assert "total_steps" in explained and "smoke" in explained
    assert subprocess.run([*command, "--help"], **there).stdout.strip() == overview()
    subprocess.run(
        [*command, "make-factworld", "output_dir=w", "train=2", "dev=0", "test=0", "sft_train=2", "sft_dev=0"], **there
    )
    assert (elsewhere / "w/train.json").is_file()
    completed = {**there, "env": {**there["env"], "COMP_LINE": "finegrained reward=fact"}}
    query = [*command, "train-ppo", "-sc", "query=bash"]
    assert subprocess.run(query, **completed).stdout.split() == ["reward=factworld"]
    with pytest.raises(subprocess.CalledProcessError) as unknown:
        subprocess.run([*command, "train-pop"], **there)
    assert unknown.value.returncode == 2 and "did you mean train-ppo?" in unknown.value.stderr
