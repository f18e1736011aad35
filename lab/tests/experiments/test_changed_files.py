"""A table made of files that differ from their commit is refused: when it is written, and wherever one is read."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from finegrained_lab.experiments import results_table
from finegrained_lab.experiments.ledger import read_ledger
from finegrained_lab.experiments.results_table import Results, made_of_changed_files
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json

ROOT = Path(__file__).parents[3]
CLAIM = {
    "claim": "a is better", "left": "a", "relation": ">", "right": "b", "column": "x", "means": [0.9, 0.1],
    "holds_in": 3, "seeds": 3,
}  # fmt: skip


class Plain(Results):
    """A page of nothing but its opening."""

    def page(self, result: Mapping[str, Any]) -> str:
        return self.opening(result, "Title", "About.")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit with a source file and a committed table, in place of this one."""
    for name in ("source.py", "docs/results/w/other.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before\n")
    who = ["-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    monkeypatch.setattr(results_table, "_CHECKOUT", tmp_path)
    return tmp_path


def written(output: Path) -> dict[str, Any]:
    job = Plain(str(output), "python it", chosen="Nothing.")
    return job.write(job.made_by())


def test_none_is_written_among_the_committed_ones(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = checkout / "docs/results/w/table.json"
    assert not made_of_changed_files(written(place)) and place.with_suffix(".md").is_file()
    (checkout / "docs/results/w/other.md").write_text("made anew\n")
    assert not made_of_changed_files(written(place))  # a table beside it is no source
    before = place.read_text()
    (checkout / "source.py").write_text("after\n")
    with pytest.raises(ConfigError, match=r"no checkout gives a table of \w+-dirty: commit first, then collect again"):
        written(place)
    assert place.read_text() == before
    assert made_of_changed_files(written(checkout / "outputs/table.json"))  # one's own may say so
    capsys.readouterr()


def test_no_statement_is_read_from_one(tmp_path: Path) -> None:
    rows = [{"system": name, "seed": seed, "x": float(name == "a")} for name in "ab" for seed in (1, 2, 3)]
    results = tmp_path / "results"
    write_json(results / "w/changed.json", {"commit": "07530c8c6bd8-dirty", "claims": [CLAIM], "rows": rows})
    for wanted in (0, "a > b x"):
        said = [{"says": "a is better", "source": "table 1", "at": {"w/changed": wanted}}]
        ledger = [{"work": "A paper", "headlines": [{"headline": "it works", "statements": said}]}]
        (tmp_path / "ledger.yaml").write_text(yaml.safe_dump(ledger))
        with pytest.raises(DataError, match="w/changed was made of files that differ from 07530c8c6bd8-dirty"):
            read_ledger(tmp_path / "ledger.yaml", results)
    (tmp_path / "ledger.yaml").write_text("[]")
    assert read_ledger(tmp_path / "ledger.yaml", results) == []  # nor need any of its comparisons stand there


def proven() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proven_page", ROOT / "docs/site/proven.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_of_proofs_counts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = proven()
    for name, commit in (("kept", "07530c8c6bd8"), ("changed", "07530c8c6bd8-dirty")):
        write_json(tmp_path / f"docs/results/detox/{name}.json", {"commit": commit})
        (tmp_path / f"docs/results/detox/{name}.md").write_text(f"# Table {name}\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    assert {table.title: table.refused for table in module.tables()} == {"Table kept": False, "Table changed": True}
    monkeypatch.setattr(module, "read_ledger", lambda *paths: [])
    monkeypatch.setattr(module, "ledger_parts", lambda: [])
    page = module.proven_page()
    assert page.count("Table changed") == 1 and "Table changed" in page.partition("## Refused")[2]
    assert re.search(r"\| detoxification +\| generated world +\| 1 ", page)


def test_no_committed_table_is_one() -> None:
    found = [path for path in (ROOT / "docs/results").rglob("*.json") if made_of_changed_files(read_json(path))]
    assert found == []
