"""A key is added in two places, the field of a class and its use: everything that reads settings knows it by then."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import quick_hydra  # noqa: F401

import finegrained_rlhf
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import named_class
from finegrained_rlhf.launch.app import run_command
from finegrained_rlhf.launch.build import build
from finegrained_rlhf.launch.command_line import CommandLine
from finegrained_rlhf.runtime.directory.fingerprints import inputs_of
from finegrained_rlhf.runtime.directory.run_records import changes

ROOT = Path(__file__).parents[2]
TARGET = "finegrained_rlhf.counting_of_a_test.Count"
MODULE = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile, above, at_least, harmless


@dataclass(frozen=True, kw_only=True)
class Count(Settings):
    """Count.

    Attributes:
        output: where the count is written.
        rounds: how often.{documentation}
    """

    every_process: ClassVar[bool] = False

    output: OutputFile
    rounds: Annotated[int, at_least(1)] = 2{fields}

    def run(self) -> None:
        """Write it."""
        with open(self.output, "w") as stream:
            stream.write(str([self.rounds{use}]))
'''
ADDED = {
    "documentation": "\n        words: what is counted.\n        speed: how fast.",
    "fields": "\n    words: InputFile | None = None\n    speed: Annotated[float, above(0), harmless] = 1.0",
    "use": ", self.words, self.speed",
}
LINE = ("--config-dir", "own", "--config-name", "count")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Writes the module of a job into the package, with some parts added, and a configuration that names it."""

    def write(**added: str) -> Path:
        text = MODULE
        for part in ADDED:
            text = text.replace(f"{{{part}}}", added.get(part, ""))
        (tmp_path / "counting_of_a_test.py").write_text(text)
        (tmp_path / "own").mkdir()
        head = "hydra:\n  help: {header: Count.}\ndefaults: [app, _self_]\n"
        (tmp_path / "own/count.yaml").write_text(f"{head}_target_: {TARGET}\noutput: count.txt\n")
        return tmp_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finegrained_rlhf, "__path__", [*finegrained_rlhf.__path__, str(tmp_path)])
    yield write
    sys.modules.pop("finegrained_rlhf.counting_of_a_test", None)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["evaluate", *LINE, *words])
    run_command("runs")


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *words)
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    return line


def table() -> str:
    """The table of the job's keys, as the documentation has it."""
    spec = importlib.util.spec_from_file_location("docs_site_build", ROOT / "docs/site/build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return "\n".join(build.key_table("runs", CommandLine((), config_directory="own", config_name="count")))


def known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What `--help` and the documentation say."""
    run(monkeypatch, "--help")
    return capsys.readouterr().out, table()


def test_before_it_is_added_nothing_knows_it(
    job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job()
    explained, page = known(monkeypatch, capsys)
    assert "rounds: 2" in explained and "`rounds: 2` | how often. (at least 1) |" in page
    assert "speed" not in explained + page
    assert "unknown key 'speed'" in refused(monkeypatch, capsys, "speed=2")


def test_everything_that_reads_settings_knows_an_added_key(
    job: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = job(**ADDED)
    explained, page = known(monkeypatch, capsys)
    assert re.search(r"speed: 1\.0 +how fast\. \(above 0; may change on resume\)", explained)
    assert "| `speed: 1.0` | how fast. (above 0; may change on resume) |" in page

    assert refused(monkeypatch, capsys, "speed=0") == "error: speed: expected above 0, got 0"
    assert refused(monkeypatch, capsys, "speed=fast") == "error: speed: expected a number, got 'fast'"
    assert "unknown key 'sped'; did you mean speed?" in refused(monkeypatch, capsys, "sped=2")
    assert refused(monkeypatch, capsys, "words=nowhere") == "error: words: nowhere: no such file or directory"
    (place / "words.txt").write_text("one")
    assert "words.txt is also words, which it would replace" in refused(
        monkeypatch, capsys, "words=words.txt", "output=words.txt"
    )
    with pytest.raises(ConfigError, match="^speed: expected above 0, got 0$"):
        named_class(TARGET)(output="x", speed=0)

    def config(**values: Any) -> dict[str, Any]:
        return {"_target_": TARGET, "output": "count.txt", **values}

    assert changes(config(), config(speed=3.0, output="elsewhere.txt")) == []
    assert [str(change) for change in changes(config(), config(rounds=3))] == ["rounds: 2 -> 3"]
    assert inputs_of(config(words="words.txt")).keys() == {"words"}

    build(config(words="words.txt", speed=3)).run()
    assert (place / "count.txt").read_text() == "[2, 'words.txt', 3]"
