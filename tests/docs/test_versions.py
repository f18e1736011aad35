"""What pyproject.toml declares: minimum.txt pins what it allows at least, and the laboratory has the same version."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def pinned(name: str) -> dict[str, str]:
    """Versions by package, of a file of constraints."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_oldest_versions_are_those_that_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [Requirement(text) for text in project["dependencies"]]
    lowest = {
        one.name: next(part.version for part in one.specifier if part.operator == ">=") for one in declared
    }  # fmt: skip
    oldest, tested = pinned("minimum.txt"), pinned("constraints.txt")
    assert list(oldest) == list(lowest)
    for one in declared:
        assert one.specifier.contains(oldest[one.name]) and one.specifier.contains(tested[one.name]), one
        if one.name != "torch":  # which has no CPU build of its oldest version at hand
            assert Requirement(f"x=={lowest[one.name]}").specifier.contains(oldest[one.name]), one


def test_the_laboratory_has_the_librarys_version_and_asks_no_index_for_it() -> None:
    library, lab = (
        tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
        for file in ("pyproject.toml", "lab/pyproject.toml")
    )
    assert lab["version"] == library["version"] and lab["requires-python"] == library["requires-python"]
    assert library["name"] not in {Requirement(text).name for text in lab["dependencies"]}
    declared = {Requirement(text).name: text for texts in library["optional-dependencies"].values() for text in texts}
    assert all(declared[Requirement(text).name] == text for text in lab["dependencies"])
