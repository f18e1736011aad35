"""What pages say of the code is there: every file, every dotted name and every configuration that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from script_runs import ROOT

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.launch.configurations import conf_directories, conf_file

pytestmark = pytest.mark.needs("finegrained_lab")  # pages speak of the laboratory too
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "docs/tutorial.ipynb"])
_FILE = re.compile(r"(?<![\w./*{}$-])((?:[\w-]+/)*[\w-]+\.py)\b")
_EXPLANATION = re.compile(r'"""(.*?)"""|(?:^|\s)#([^\n]*)', re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?<!/)\b((?:finegrained_rlhf|finegrained_lab|reward_models)(?:\.(?!(?:md|json)\b)\w+)+)")
_CONFIGURATION = re.compile(r"\b(experiment|pipeline)=([\w/$]+)")
_BELOW = ("", "finegrained_rlhf", "reward_models", "lab", "scripts", "docs/site")
_OURS = "finegrained_rlhf|lab|reward_models|conf|scripts|tests|benchmarks|guards|docs"
_DIRECTORY = re.compile(rf"(?<![\w./*{{}}$-])((?:{_OURS})(?:/[\w-]+)*)/(?![\w*{{$])")
_PACKAGES = ("finegrained_rlhf", "reward_models", "lab/finegrained_lab")
_OTHERS_FILES = (
    "utils.py",
    "doc2dial.py",
    "seq2seq_utils.py",
    "train_dense_encoder.py",
    "fgrlhf/value.py",
    "fgrlhf/ppo.py",
    "scai-qrecc21-evaluator.py",
    "eval/eval.py",
    "create_rel_fact_rm_files.py",
    "create_comp_rm_files.py",
)
"""Files of other projects, which docstrings cite."""
_OTHERS_NAMES = {"model.forward"}
_DATA = (".html", ".json", ".jsonl", ".md", ".yaml")
_READERS_OWN = {"my_reward.py", "my_rewards.py", "my_scorers.py", "train_trl.py", "scripts/NAME.py", "NAME.py"}
"""What a reader is told to write, and placeholders."""
_READERS_EXPERIMENTS = {"factual", "careful", "mine", "null"}
"""Examples of files that a reader writes under `conf/`, and no experiment."""


def of_today(page: Path) -> str:
    """What a page says of the code as it is: nothing of the renames in the changelog, nor of what CONTRIBUTING adds."""
    text = page.read_text(encoding="utf-8")
    if page.name == "CONTRIBUTING.md":
        text = re.sub(r"^```\w+\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
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
                except ConfigError as error:  # a bridge without its engine
                    assert "make env-" in str(error)
                    break
                except (ImportError, AttributeError):
                    pytest.fail(f"{page.name}: there is no {'.'.join(name.split('.')[: number + 2])}")
            found = getattr(found, part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_experiment_that_a_page_names_exists(page: Path) -> None:
    for group, name in set(_CONFIGURATION.findall(of_today(page))):
        if name in _READERS_EXPERIMENTS or name.isupper() or "/NAME" in name:
            continue
        pattern = re.sub(r"[$]\w+", "*", name)  # of a loop in a shell
        places = [directory / group for directory in conf_directories()]
        assert any([*place.glob(f"{pattern}.yaml")] for place in places), f"{page.name}: {group}={name}"


def explanations() -> Iterator[tuple[str, str]]:
    """Every docstring and comment of the packages and the benchmarks, with the file that it is in."""
    for path in (*modules(), *sorted((ROOT / "benchmarks").rglob("*.py"))):
        for match in _EXPLANATION.finditer(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix(), match[1] or match[2]


@cache
def modules() -> list[Path]:
    return [path for package in _PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def fields() -> set[str]:
    """Names of all fields of classes, which dotted keys of configurations are made of."""
    return {name for source in sources().values() for name in re.findall(r"^    (\w+): ", source, re.MULTILINE)}


@cache
def rooms() -> set[str]:
    """Names of all folders of the packages."""
    return {path.parent.name for path in modules()}


@cache
def sources() -> dict[str, str]:
    """The source of each module by its dotted name, and by every end of that name."""
    named: dict[str, str] = {}
    for path in modules():
        parts = [part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
        for start in range(len(parts)):
            name = ".".join(parts[start:])
            named[name] = named.get(name, "") + path.read_text(encoding="utf-8")
    return named


def names_nothing(word: str, files: set[str]) -> bool:
    """Whether a word in backticks has the form of a file or of a dotted name of ours, and there is none."""
    if word.endswith(".py"):
        below = [
            ROOT,
            *(ROOT / package for package in _PACKAGES),
            *(ROOT / _PACKAGES[0]).iterdir(),
            ROOT / "benchmarks",
        ]
        inside = "/" in word and not any((place / word).is_file() for place in below)
        return not word.endswith(_OTHERS_FILES) and (inside or word.rpartition("/")[2] not in files)
    first, _, rest = word.partition(".")
    if not rest or first not in rooms() or not re.fullmatch(r"[a-z_]+(\.\w+)+", word) or word.endswith(_DATA):
        return False
    parts = word.split(".")
    end = next(end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in sources())
    known = sources()[".".join(parts[:end])]
    missing = end < len(parts) and not all(re.search(rf"\b{part}\b", known) for part in parts[end:])
    return missing and word not in _OTHERS_NAMES and not fields().issuperset(parts)


def test_every_file_and_dotted_name_in_a_docstring_or_comment_exists() -> None:
    files = code_files()
    places: dict[str, str] = {}
    for module, text in explanations():
        places.update(dict.fromkeys([*re.findall(r"`([\w./]+)`", text), *_FILE.findall(text)], module))
    assert len(places) > 1000
    assert sorted(f"{module}: `{word}`" for word, module in places.items() if names_nothing(word, files)) == []


@pytest.mark.parametrize(
    ("word", "wrong"),
    [
        ("rollout/mixers/steppers.py", False),
        ("rollout/mixed.py", True),
        ("train_sft.py", False),
        ("doctor_machine.py", True),
        ("models.families.t5.rows_are_shared", False),
        ("models.t5.rows_are_shared", True),
        ("training.measure.ResponseMonitor", True),
        ("conqrr.label_files", True),
        ("finegrained_rlhf.launch.nothing", True),
        ("rollout", False),
        ("metrics.jsonl", False),
    ],
)
def test_a_name_that_names_nothing_is_noticed(word: str, wrong: bool) -> None:
    assert names_nothing(word, code_files()) is wrong


def test_the_changelog_says_where_every_experiment_of_version_0_1_is() -> None:
    rows = re.findall(
        r"^\| `(\w+)\.py experiment=(\w+)` \| `(experiment|pipeline)=([\w/]+)` \|$",
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == len({old for _, old, _, _ in rows}) == 39
    for script, old, group, new in rows:
        assert not conf_file(f"experiment/{old}.yaml").exists()
        text = conf_file(f"{group}/{new}.yaml").read_text(encoding="utf-8")
        assert (script == "run_experiment") == (group == "pipeline")
        assert group == "pipeline" or f"# script: {script}" in text, new
