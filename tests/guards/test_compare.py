"""Two checkouts of a toy project through `python -m guards.compare`: what is run, kept, compared and said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from script_runs import ROOT

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.launch.commands import names
from guards.compare import Checkout, Side, compare_case, main, read_cases, table
from guards.differences import Exclusions

SCRIPT = """
import json, sys
from pathlib import Path
from finegrained_rlhf.formula import area
directory, source = Path(sys.argv[1]), sys.argv[2]
width = json.loads(Path(source).read_text())["width"] if source != "none" else 3
directory.mkdir(exist_ok=True)
(directory / "made.json").write_text(json.dumps({"width": area(width), "place": str(directory)}))
print(area(width))
"""
CASES = """
first:
  command: draw
  arguments: ["{out}/a", none]
second:
  command: draw
  arguments: ["{out}/b", "{first}/a/made.json"]
third:
  command: draw
  arguments: ["{out}/c", absent.json]
fourth:
  command: draw
  arguments: ["{out}/d", "{third}/c/made.json"]
"""


def checkout(root: Path, formula: str, script: bool = True) -> Path:
    """A project whose one command writes what a formula gives; as a script or as the package's own command."""
    (root / "finegrained_rlhf").mkdir(parents=True)
    (root / "finegrained_rlhf/__init__.py").touch()
    (root / "finegrained_rlhf/formula.py").write_text(f"def area(width):\n    return {formula}\n")
    home = root / ("scripts/draw.py" if script else "finegrained_rlhf/__main__.py")
    home.parent.mkdir(exist_ok=True)
    home.write_text(SCRIPT if script else "import sys\nassert sys.argv.pop(1) == 'draw'\n" + SCRIPT)
    return root


def run(tmp_path: Path, base: Path, new: Path) -> dict[str, Any]:
    """The report of the toy cases."""
    (tmp_path / "cases.yaml").write_text(CASES)
    equal = main([str(base), str(new), f"out={tmp_path / 'out'}", f"cases={tmp_path / 'cases.yaml'}"])["equal"]
    report: dict[str, Any] = json.loads((tmp_path / "out/report.json").read_text())
    assert {name: row["result"] == "equal" for name, row in report.items()} == {
        n: one["ok"] for n, one in equal.items()
    }
    return report


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guards.compare.import_libraries", lambda: None)


def test_a_mutated_checkout_differs_where_its_formula_matters(tmp_path: Path) -> None:
    base = checkout(tmp_path / "base", "width * width")
    new = checkout(tmp_path / "new", "width * 3")
    report = run(tmp_path, base, new)
    assert [row["result"] for row in report.values()] == ["equal", "different", "failed", "failed"]
    names = {row["name"]: row["size"] for row in report["second"]["differences"]}
    assert names == {"second/b/made.json: width": 54.0, "second/printed.txt": 54.0}
    assert "ended with 1: FileNotFoundError" in report["third"]["differences"][0]["what"]
    assert "what it needs failed" in report["fourth"]["differences"][0]["what"]
    assert "| second | different | 3 | 2 | 54 |" in (tmp_path / "out/report.md").read_text()


def test_commands_are_found_without_scripts_and_results_are_kept(tmp_path: Path) -> None:
    base = checkout(tmp_path / "base", "width * width")
    new = checkout(tmp_path / "new", "width ** 2", script=False)
    report = run(tmp_path, base, new)
    assert [report[name]["result"] for name in ("first", "second")] == ["equal", "equal"]
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("made.json")}
    assert len(made) == 4
    (new / "finegrained_rlhf/formula.py").write_text("def area(width):\n    return width + 1\n")
    report = run(tmp_path, base, new)
    assert report["first"]["result"] == "different"
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("made.json")}
    assert len(after) == 6 and made.items() <= after.items()  # what was run stays; the changed code has its own place


def test_kept_results_are_those_of_the_same_code_elsewhere(tmp_path: Path) -> None:
    formula = "__file__"
    base, new = checkout(tmp_path / "base", formula), checkout(tmp_path / "new", f"({formula})")
    assert run(tmp_path, base, new)["first"]["result"] == "equal"
    moved = base.rename(tmp_path / "moved")
    assert run(tmp_path, moved, new)["first"]["result"] == "equal"


def test_two_runs_of_one_checkout_are_two(tmp_path: Path) -> None:
    base = checkout(tmp_path / "base", "__import__('os').getpid()")
    report = run(tmp_path, base, base)
    assert report["first"]["result"] == "different"


def test_what_is_neither_a_checkout_nor_a_revision(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkout"):
        Checkout.of(str(tmp_path), tmp_path)
    with pytest.raises(ConfigError, match="neither a directory nor a revision"):
        Checkout.of("no-such-revision", tmp_path)


def test_cases_are_what_they_should_be(tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text("a:\n  command: b\n  arguments: ['{c}/x']\n")
    with pytest.raises(ConfigError, match="{c}: no such case before it"):
        read_cases(tmp_path / "cases.yaml")
    (tmp_path / "cases.yaml").write_text("a:\n  command: b\n  arguments: []\n  output: x\n")
    with pytest.raises(ConfigError, match="unknown key 'output'"):
        read_cases(tmp_path / "cases.yaml")


@pytest.mark.needs("finegrained_lab")
def test_every_algorithm_trainer_and_measure_is_among_the_cases() -> None:
    cases = read_cases()
    words = " ".join(word for case in cases.values() for word in case.arguments)
    algorithms = {path.stem for path in (ROOT / "conf/algorithm").glob("*.yaml")}
    assert algorithms <= set(re.findall(r"algorithm=(\w+)", words))
    commands = {case.command for case in cases.values()}
    wanted = {name for name in names() if re.match(r"(train|evaluate|inspect)_|evaluate$|score_human", name)}
    wanted -= {"evaluate_judge"}  # asks a judge behind an endpoint
    assert len(wanted) > 15 and wanted <= commands
    kinds = set(re.findall(r"reward_model=(\w+)", words))
    assert {"preference", "segment"} <= kinds  # relevance, factuality and completeness are steps of `annotation`
    assert yaml.safe_load((ROOT / "guards/cases.yaml").read_text()).keys() == cases.keys()


def test_a_case_without_results_has_failed(tmp_path: Path) -> None:
    cases = read_cases()
    base = Checkout(checkout(tmp_path / "base", "1"), tmp_path / "out")
    side = Side(base, cases)
    result = compare_case(cases["smoke"], side, side, Exclusions())
    assert result.verdict == "failed" and len(result.differences) == 2
    assert table({"smoke": result}).splitlines()[2].startswith("| smoke | failed | 0 | 2 |")


def test_a_case_whose_results_are_all_left_out_has_failed(tmp_path: Path) -> None:
    base, new = (checkout(tmp_path / name, formula) for name, formula in (("base", "1"), ("new", "1.0 * 1")))
    run(tmp_path, base, new)
    cases = read_cases(tmp_path / "cases.yaml")
    sides = [Side(Checkout(root, tmp_path / "out"), cases) for root in (base, new)]
    result = compare_case(cases["first"], sides[0], sides[1], Exclusions((re.compile(".*"),)))
    assert (result.verdict, result.differences[0].what) == ("failed", "no value to compare")
