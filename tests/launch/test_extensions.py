"""Packages that join: their options, commands and classes count; what lies about in a working directory never does."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from script_runs import ROOT, run_process

from finegrained_rlhf.conqrr.data import RewriteData
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.extensions import extensions, packages
from finegrained_rlhf.core.fields import is_ours
from finegrained_rlhf.launch.app import run_command
from finegrained_rlhf.launch.checks.foreign import classes_of_project
from finegrained_rlhf.launch.commands import LEFT, NAMES, all_commands, main, overview

COMMANDS = '["Measure"]\nmeasure_waves = "measure waves"\nevaluate = "not ours"\nno_file = "has no configuration"\n'
MODULE = '''"""Waves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasureWaves:
    """Measure.

    Attributes:
        height: of a wave, in metres.
    """

    height: float = 2.0

    def run(self) -> None:
        """Say it."""
        print(f"waves of {self.height} m")
'''
CONFIG = """defaults:
  - app
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none

_target_: waves.MeasureWaves
hydra:
  help:
    header: Measures waves.
"""


def write_package(place: Path, package: str = "waves", entry: str | None = None) -> Path:
    """A package with one command and the metadata of its distribution, as an installer lays them out."""
    for name, text in {
        f"{package}/__init__.py": MODULE,
        f"{package}/commands.toml": COMMANDS,
        f"{package}/conf/measure_waves.yaml": CONFIG,
        f"{package}/conf/algorithm/tidal.yaml": "# @package _global_\nppo:\n  epochs: 7\n",
        f"{package}/conf/algorithm/ppo.yaml": "# @package _global_\nppo:\n  epochs: 9\n",
        f"{package}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
        f"{package}-1.0.dist-info/entry_points.txt": f"[finegrained_rlhf]\nown = {entry or package}\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    (place / package / "conf" / "latin.yaml").write_bytes(b"name: \xe9\n")
    return place


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], tuple[str, ...]]]:
    """The packages that join with one more directory on Python's path."""

    def forget() -> None:
        for cached in (extensions, all_commands, classes_of_project):
            cached.cache_clear()

    def with_place(place: Path) -> tuple[str, ...]:
        monkeypatch.syspath_prepend(str(place))
        forget()
        return packages()

    yield with_place
    monkeypatch.undo()
    forget()
    sys.modules.pop("waves", None)


def test_an_installed_package_joins(tmp_path: Path, joined: Callable[[Path], tuple[str, ...]]) -> None:
    place = write_package(tmp_path / "site-packages")
    assert "waves" in joined(place) and is_ours("waves.MeasureWaves") and "waves" not in sys.modules
    (waves,) = [extension for extension in extensions() if extension.package == "waves"]
    assert waves.conf == place / "waves" / "conf"
    assert waves.commands == {"Measure": {"measure_waves": "measure waves"}}


@pytest.mark.parametrize("directory", ["", "src", "site-packages"])
def test_a_working_directory_brings_nothing(
    tmp_path: Path, joined: Callable[[Path], tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    place = write_package(tmp_path / directory)
    monkeypatch.chdir(place)
    assert "waves" not in joined(place) and not is_ours("waves.MeasureWaves")


@pytest.mark.parametrize("entry", ["nowhere", "waves.inner", "waves:Wave", "waves.py", "sys", "../waves"])
def test_an_entry_that_names_no_package_brings_nothing(
    tmp_path: Path, joined: Callable[[Path], tuple[str, ...]], entry: str
) -> None:
    before = packages()
    assert joined(write_package(tmp_path / "site-packages", entry=entry)) == before


def test_a_package_brings_a_reader_of_its_own(
    tmp_path: Path, joined: Callable[[Path], tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_package(tmp_path / "site-packages")
    (place / "waves/parts.toml").write_text('[questions]\nwave = "waves.read_waves"\nfar = "os.path.join"\n')
    with (place / "waves/__init__.py").open("a") as module:
        module.write("\n\ndef read_waves(path, unknown='keep'):\n    return f'{path} {unknown}'\n")
    joined(place)
    assert "wave" in RewriteData.formats() and "far" not in RewriteData.formats() and "waves" not in sys.modules
    assert RewriteData("x", "wave", unknown="drop").read() == "x drop"
    with pytest.raises(ConfigError, match=r"part belongs to .*, the format is 'wave'"):
        RewriteData("x", "wave", part="dev")


def test_what_cannot_be_read_brings_nothing(tmp_path: Path, joined: Callable[[Path], tuple[str, ...]]) -> None:
    place = write_package(tmp_path / "site-packages")
    for text in (b"Measure = 3\n", b"not toml", b"\xff"):
        (place / "waves/commands.toml").write_bytes(text)
        (place / "waves/parts.toml").write_bytes(text)
        joined(place)
        assert [(dict(e.commands), dict(e.parts)) for e in extensions() if e.package == "waves"] == [({}, {})]


def test_its_options_and_classes_count_and_ours_come_first(
    tmp_path: Path,
    joined: Callable[[Path], tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    joined(write_package(tmp_path / "site-packages"))
    monkeypatch.chdir(tmp_path)

    def printed(command: str, *words: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", [command, *words])
        try:
            run_command(command)
        except SystemExit as ended:
            assert ended.code == status
        said = capsys.readouterr()
        return said.out + said.err

    assert "  measure-waves  " in overview() and "not ours" not in overview() and "no-file" not in overview()
    assert re.search(r"height: 2\.0 +of a wave, in metres\.", printed("measure_waves", "--help"))
    assert "did you mean height?" in printed("measure_waves", "hight=3", status=2)
    assert "epochs: 7" in printed("train_ppo", "algorithm=tidal", "--cfg", "job")
    assert "epochs: 4" in printed("train_ppo", "algorithm=ppo", "--cfg", "job")
    assert "grpo, gspo, ppo, reinforce, rloo, tidal" in printed("train_ppo", "algorithm=none", status=2)
    assert "waves.MeasureWaves" in classes_of_project()


def test_its_commands_run(tmp_path: Path) -> None:
    place = write_package(tmp_path / "site-packages")
    (tmp_path / "work").mkdir()
    words = ("-m", "finegrained_rlhf", "measure-waves", "height=3.5")
    done = run_process(*words, cwd=tmp_path / "work", PYTHONPATH=f"{place}:{ROOT}")
    assert "waves of 3.5 m" in done.stdout, done.stderr


def test_the_library_names_no_package_that_joins() -> None:
    """Imports inside functions and names in texts too; but for what classes were called before they left."""
    files = [
        path for top in ("finegrained_rlhf", "reward_models", "conf", "scripts") for path in (ROOT / top).rglob("*")
    ]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files if path.suffix in (".py", ".yaml")
    }
    naming = {name for name, text in texts.items() if "finegrained_lab" in text}
    assert naming == {"finegrained_rlhf/core/extensions.py", "finegrained_rlhf/runtime/moved.py"}
    assert len(re.findall(r"^\s*(?:import|from) finegrained_lab", "\n".join(texts.values()), re.MULTILINE)) == 0


def test_a_command_that_left_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("finegrained_rlhf.launch.commands.names", lambda: NAMES)
    for name in LEFT:
        monkeypatch.setattr(sys, "argv", ["finegrained", name.replace("_", "-"), "output=o.json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        said = (
            f"error: no command '{name.replace('_', '-')}'; it is the laboratory's: pip install -e lab in a checkout\n"
        )
        assert capsys.readouterr().err == said
