"""The commands and the ways into them, and what an installed wheel brings: the console command, the configurations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from refusals import quick_hydra  # noqa: F401
from script_runs import PRELOADED_PYTHON, ROOT, fork_server, run_process
from transformers.utils import logging

from finegrained_rlhf.launch.app import run_command
from finegrained_rlhf.launch.commands import NAMES, names, overview
from finegrained_rlhf.launch.configurations import conf_directory, conf_file
from finegrained_rlhf.launch.mistakes import user_errors


def test_each_command_has_a_configuration_and_each_script_is_a_command() -> None:
    assert all((conf_directory() / f"{name}.yaml").is_file() for name in NAMES)
    assert all(conf_file(f"{name}.yaml").is_file() for name in names())
    assert len(set(names())) == len(names()) >= len(NAMES)
    for path in (ROOT / "scripts").glob("*.py"):
        assert path.stem in NAMES and f'main("{path.stem}")' in path.read_text(encoding="utf-8")


def test_the_overview_lists_every_command_in_80_columns() -> None:
    listed = re.findall(r"^  ([a-z-]+)  ", overview(), re.MULTILINE)
    assert listed == [name.replace("_", "-") for name in names()]
    assert max(map(len, overview().splitlines())) <= 80


def test_every_command_explains_itself_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in names():
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        run_command(name)
        printed = capsys.readouterr()
        assert re.search(rf"(finegrained(_rlhf)? {name.replace('_', '-')}|scripts/{name}\.py) ", printed.out), name
        assert "\nKeys (KEY=VALUE; ??? must be given):\n" in printed.out and printed.err == ""
        assert "powered by Hydra" not in printed.out
    assert not list(tmp_path.iterdir())


def test_every_way_in_is_the_same(tmp_path: Path) -> None:
    """The console script, the module with either spelling of a name, and a file in `scripts/`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["finegrained"].partition(":")
    console = ["-c", f"from {module} import {function}; {function}()", "train-sft"]
    ways = [console, ["-m", "finegrained_rlhf", "train-sft"], ["-m", "finegrained_rlhf", "train_sft"]]
    ways.append([str(ROOT / "scripts/train_sft.py")])
    ends = [run_process(*way, "data=nowhere.json", "total_stepz=1", cwd=tmp_path, preloaded=True) for way in ways]
    assert {(end.returncode, end.stdout) for end in ends} == {(2, "")}
    (said,) = {end.stderr for end in ends}
    assert said == "error: unknown key 'total_stepz'; did you mean total_steps? (--help lists the keys)\n"


def test_a_command_shows_no_progress_of_transformers() -> None:
    logging.enable_progress_bar()
    with user_errors("evaluate"):
        assert not logging.is_progress_bar_enabled() and logging.get_verbosity() == logging.ERROR


def test_names_and_keys_are_completed(tmp_path: Path) -> None:
    program = tmp_path / "finegrained"
    program.write_text(f'#!/bin/sh\nexec {PRELOADED_PYTHON} -m finegrained_rlhf "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    asked = ["finegrained measure-", "finegrained train-ppo reward=fact", "finegrained train_ppo ppo.kl.be"]
    typed = "\n".join(
        f'COMP_LINE="{line}"; COMP_WORDS=($COMP_LINE); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n'
        '_finegrained_complete; echo "${COMPREPLY[@]}"'
        for line in asked
    )
    program_text = f'eval "$(finegrained --completion)"\n{typed}'
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FORK_SERVER": fork_server()}
    done = subprocess.run(["bash", "-c", program_text], env=variables, cwd=ROOT, **CALL)
    typed_names = [name.replace("_", "-") for name in names() if name.startswith("measure_")]
    assert [line.split() for line in done.stdout.splitlines()] == [typed_names, ["reward=factworld"], ["ppo.kl.beta="]]


def test_no_page_and_no_message_names_a_package_that_is_on_no_index() -> None:
    """Anyone could register the name; a checkout is what there is to install from."""
    told = []
    for folder in ("finegrained_rlhf", "reward_models", "scripts", "benchmarks", "docs", "conf", "lab"):
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
    assert not any(name.startswith(("scripts/", "conf/", "tests/", "lab/", "finegrained_lab/")) for name in held)
    beside = {path for path in (ROOT / "finegrained_rlhf").rglob("*") if path.is_file()}
    texts = {path.relative_to(ROOT).as_posix() for path in beside if path.suffix not in (".py", ".pyc")}
    assert len(texts) > 25 and texts <= held
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
