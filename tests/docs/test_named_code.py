"""What pages say of the code is there: every file, every dotted name and every configuration that they name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from script_runs import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "docs/tutorial.ipynb"])
_FILE = re.compile(r"(?<![\w./*{}$-])((?:[\w-]+/)*[\w-]+\.py)\b")
_NAME = re.compile(r"(?<!/)\b((?:finegrained_rlhf|reward_models)(?:\.(?!(?:md|json)\b)\w+)+)")
_CONFIGURATION = re.compile(r"\b(experiment|pipeline)=([\w/$]+)")
_BELOW = ("", "finegrained_rlhf", "reward_models", "scripts", "docs/site")
_OURS = "finegrained_rlhf|reward_models|conf|scripts|tests|benchmarks|docs"
_DIRECTORY = re.compile(rf"(?<![\w./*{{}}$-])((?:{_OURS})(?:/[\w-]+)*)/(?![\w*{{$])")
_READERS_OWN = {"my_rewards.py", "my_scorers.py", "scripts/NAME.py", "NAME.py"}
"""What a reader is told to write, and placeholders."""
_READERS_EXPERIMENTS = {"factual", "careful", "null"}
"""Examples of files that a reader writes under `conf/`, and no experiment."""


def of_today(page: Path) -> str:
    """A page; of the changelog what describes the code as it is, not the renames that it lists."""
    text = page.read_text(encoding="utf-8")
    return "" if page.name == "CHANGELOG.md" else text


def code_files() -> set[str]:
    """Names of all files of code."""
    return {path.name for top in (*_BELOW[1:], "tests", "benchmarks") for path in (ROOT / top).rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_code_that_a_page_names_exists(page: Path) -> None:
    names = code_files()
    wrong = [
        name
        for name in sorted(set(_FILE.findall(of_today(page))) - _READERS_OWN)
        if not any((ROOT / below / name).is_file() for below in _BELOW) and not ("/" not in name and name in names)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_directory_of_ours_that_a_page_names_exists(page: Path) -> None:
    named = {name.partition("/NAME")[0].partition("/SYSTEM")[0] for name in _DIRECTORY.findall(of_today(page))}
    assert [name for name in sorted(named) if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_dotted_name_of_ours_exists(page: Path) -> None:
    for name in sorted(set(_NAME.findall(of_today(page)))):
        if name.endswith(".py"):  # a file, which the test above looks for
            continue
        found, parts = import_module(name.split(".")[0]), name.split(".")[1:]
        for number, part in enumerate(parts):
            if not hasattr(found, part):
                try:
                    import_module(f"{found.__name__}.{part}")
                except (ImportError, AttributeError):
                    pytest.fail(f"{page.name}: there is no {'.'.join(name.split('.')[: number + 2])}")
            found = getattr(found, part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_experiment_that_a_page_names_exists(page: Path) -> None:
    for group, name in set(_CONFIGURATION.findall(of_today(page))):
        if name in _READERS_EXPERIMENTS or name.isupper() or "/NAME" in name:
            continue
        place = ROOT / "conf" / group
        pattern = re.sub(r"[$]\w+", "*", name)  # of a loop in a shell
        assert list(place.glob(f"{pattern}.yaml")), f"{page.name}: {group}={name}"


def test_the_changelog_says_where_every_experiment_of_version_0_1_is() -> None:
    rows = re.findall(
        r"^\| `(\w+)\.py experiment=(\w+)` \| `(experiment|pipeline)=([\w/]+)` \|$",
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == len({old for _, old, _, _ in rows}) == 39
    for script, old, group, new in rows:
        assert not (ROOT / f"conf/experiment/{old}.yaml").exists()
        text = (ROOT / f"conf/{group}/{new}.yaml").read_text(encoding="utf-8")
        assert (script == "run_experiment") == (group == "pipeline")
        assert group == "pipeline" or f"# script: {script}" in text, new
