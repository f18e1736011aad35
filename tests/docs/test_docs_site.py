"""The architecture page says what holds, and the documentation site builds with every link leading somewhere."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
import pytest
import yaml
from browser import Opened, launched
from playwright.sync_api import Browser

ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").is_file())


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", ROOT / f"docs/site/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def layers() -> list[list[str]]:
    """The packages that import-linter keeps apart, from the top down."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(c for c in config["tool"]["importlinter"]["contracts"] if c["name"] == "Imports point down")
    return [layer.translate(str.maketrans("|:()", "    ")).split() for layer in contract["layers"]]


def floors() -> dict[str, int]:
    """Package → its floor on the architecture page."""
    packages = {package for layer in layers() for package in layer}
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", ARCHITECTURE, re.MULTILINE)
    named = [(name, int(floor)) for floor, text in rows for name in re.findall(r"`(\w+)`", text) if name in packages]
    assert len(named) == len(dict(named)), "a package is on two floors"
    return dict(named)


def test_the_floors_of_the_page_are_those_that_import_linter_checks() -> None:
    """Several layers of the contract may be one floor, in their order."""
    found = floors()
    assert found.keys() == {path.parent.name for path in (ROOT / "finegrained_rlhf").glob("*/__init__.py")}
    in_order = [found[package] for layer in layers() for package in sorted(layer, key=lambda name: -found[name])]
    assert in_order == sorted(in_order, reverse=True) and {*in_order} == {*range(in_order[0] + 1)}


@pytest.mark.needs("finegrained_lab")
def test_what_has_been_proven_is_what_the_results_files_say() -> None:
    proven = load("proven")
    assert proven.PAGE.read_text(encoding="utf-8") == proven.proven_page(), "run: python docs/site/proven.py"
    assert proven.README.read_text(encoding="utf-8") == proven.readme_with_lines(), "run: python docs/site/proven.py"
    failed = ["it pays for copies"]
    for judge in ("labels", "learned model"):
        assert proven._failed(judge, {"gate": {"passed": False, "reasons": failed}}) == tuple(failed)
        assert proven._failed(judge, {"gate": {"passed": True}}) == ()
    assert proven._failed("labels", {}) == () != proven._failed("learned model", {})
    shown = {table.page for table in proven.tables()}
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs/results").glob("*/*.md")}
    assert shown == pages  # no committed table is left out


@pytest.mark.needs("finegrained_lab")
def test_figures_of_a_gpu_are_known_by_their_machine_record() -> None:
    proven = load("proven")
    assert list(proven._gpus({"machine": {"gpu": None}, "rows": [{"gpus": 64}], "x": {"gpus": []}})) == []
    assert list(proven._gpus([{"machine": {"gpu": "NVIDIA H200"}}, {"gpus": ["A", "B"]}])) == ["NVIDIA H200", "A", "B"]


def test_packages_and_the_picture_name_the_floors_of_the_page() -> None:
    picture = (ROOT / "docs/images/architecture.svg").read_text(encoding="utf-8")
    assert "(images/architecture.svg)" in ARCHITECTURE
    drawn = re.findall(r'class="(?:b|m)" [^>]*y="([\d.]+)">(\w+)<', picture)
    heights: dict[int, list[float]] = {}
    for package, floor in sorted(floors().items(), key=lambda entry: -entry[1]):
        (height,) = (float(y) for y, name in drawn if name == package)
        heights.setdefault(floor, []).append(height)
        text = (ROOT / "finegrained_rlhf" / package / "__init__.py").read_text(encoding="utf-8")
        named = re.match(r'"""Floor (\d+):', text)
        assert named is None or int(named.group(1)) == floor, package
    assert all(max(above) < min(below) for above, below in itertools.pairwise(heights.values()))


def test_the_page_lists_the_concepts() -> None:
    concepts = tomllib.loads((ROOT / "guards/concepts.toml").read_text(encoding="utf-8"))["concept"]
    rows = [f"{n}. **{one['name']}** (`{one['stands_in']}`): {one['says']}" for n, one in enumerate(concepts, start=1)]
    listed = re.findall(r"^\d+\. \*\*.*$", ARCHITECTURE, re.MULTILINE)
    assert listed == rows and len(rows) <= 16 and f"{len(rows)} concepts" in ARCHITECTURE


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build = load("build")
    (tmp_path / "pages").mkdir()
    settings = {"site_name": "x", "docs_dir": "pages", "site_dir": "site", "plugins": [], "theme": {"name": "mkdocs"}}
    checked = yaml.safe_load((ROOT / "docs/site/mkdocs.yml").read_text(encoding="utf-8"))["validation"]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump({**settings, "validation": checked}), encoding="utf-8")
    page = "# Title\n\n[there](nowhere.md) [here](index.md#nothing)\n"
    (tmp_path / "pages/index.md").write_text(page, encoding="utf-8")
    assert build.run_mkdocs(tmp_path / "mkdocs.yml") == 1
    said = capfd.readouterr().out
    assert "nowhere.md" in said and "#nothing" in said


def navigated(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        ((name, below),) = entry.items()
        yield from navigated(below) if isinstance(below, list) else [name]


def test_the_api_folds_and_parents_come_before_children(tmp_path: Path) -> None:
    entries = load("build").write_api(tmp_path)
    names = list(navigated(entries))
    assert len(names) == len(load("build").rooms())
    for name in names:
        assert not [below for below in names[: names.index(name)] if below.startswith(f"{name}.")]
    assert names.index("dialki") < names.index("dialki.training")
    assert len(entries) < 40 and any(isinstance(next(iter(entry.values())), list) for entry in entries)


@pytest.mark.scripts
def test_the_search_works_from_disk(tmp_path: Path, browser: Browser) -> None:
    """In a browser, of a site with the project's own theme and search, at the width of a desk and of a phone."""
    build = load("build")
    config = yaml.safe_load((ROOT / "docs/site/mkdocs.yml").read_text(encoding="utf-8"))
    config["plugins"] = [plugin for plugin in config["plugins"] if isinstance(plugin, str)]
    config |= {"docs_dir": "pages", "site_dir": "site", "nav": ["index.md", "other.md"], "extra_css": []}
    (tmp_path / "pages/docs/site").mkdir(parents=True)
    (worker,) = config["extra"]["polyfills"]
    shutil.copyfile(ROOT / worker, tmp_path / "pages" / worker)
    (tmp_path / "pages/index.md").write_text("# First\n\nNothing.\n", encoding="utf-8")
    (tmp_path / "pages/other.md").write_text("# Second\n\nA marmalade is here.\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert build.run_mkdocs(tmp_path / "mkdocs.yml") == 0
    for width in (1400, 390):
        with Opened(browser, tmp_path / "site/index.html", viewport={"width": width, "height": 800}) as opened:
            if width < 500:
                opened.page.locator("label[for=__search].md-icon").first.click()
            opened.page.locator(".md-search__input").press_sequentially("marmalade")
            result = opened.page.locator(".md-search-result__item a").first
            result.wait_for(state="visible")
            assert result.get_attribute("href").split("?")[0].endswith("other.html")
            assert opened.complaints == [] and all(url.startswith("file:") for url in opened.requests)


def documented(item: Any) -> Iterator[Any]:
    """The docstrings of a module or class and of all below it; an alias is another's."""
    if item.docstring:
        yield item.docstring
    for member in item.members.values():
        if not member.is_alias:
            yield from documented(member)


def unreadable(place: Path, package: str, caplog: pytest.LogCaptureFixture) -> tuple[int, list[str]]:
    """How many docstrings a package has, and what griffe has against them, which ends the site's build."""
    loader = griffe.GriffeLoader(search_paths=[place], **load("build").docstring_options())
    docstrings = list(documented(loader.load(package)))
    for docstring in docstrings:
        assert docstring.parsed
    return len(docstrings), [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_docstring_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for package in load("build").PACKAGES:
        count, wrong = unreadable(ROOT, package, caplog)
        assert count > 300 and wrong == []
    (tmp_path / "toy.py").write_text('"""A module.\n\nAttributes:\n    x without a colon\n"""\n', encoding="utf-8")
    assert unreadable(tmp_path, "toy", caplog)[1]


@pytest.mark.scripts
@pytest.mark.parametrize("only", [("reward_models",), pytest.param(None, marks=pytest.mark.slow)])
def test_the_site_builds_with_its_links_checked(tmp_path: Path, only: tuple[str, ...] | None) -> None:
    assert load("build").build_site(tmp_path / "site", only=only) == 0
    index = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert "Fine-grained RLHF" in index
    page = (tmp_path / "site/api/reward_models.html").read_text(encoding="utf-8")
    assert "RewardModelRecord" in page
