"""The committed mutations apply, and the runner tells a caught one from one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import ConfigError
from guards.command import ROOT, chosen
from guards.mutations import Copy, Mutation, first_failure, read_mutations

ROOMS = ("rl", "rewards", "rollout", "training", "metrics")


def test_every_mutation_applies_and_names_a_test_that_exists() -> None:
    mutations = read_mutations()
    assert len(mutations) >= 60
    for mutation in mutations.values():
        file, _, test = mutation.test.partition("::")
        assert mutation.mutated() and (ROOT / file).exists(), mutation.name
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), mutation.name
    files = [mutation.file for mutation in mutations.values()]
    for place in (*(f"finegrained_rlhf/{room}/" for room in ROOMS), "reward_models/"):
        assert sum(file.startswith(place) for file in files) >= 7, place


def test_a_mutation_that_no_longer_applies_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1 + 1\n")
    assert Mutation("plus", "a.py", "1 + 1", "1 - 1", "t.py").mutated(tmp_path) == "x = 1 - 1\n"
    for original, count in (("1", 2), ("2", 0)):
        with pytest.raises(ConfigError, match=f"plus: a.py: original: expected once, stands there {count}"):
            Mutation("plus", "a.py", original, "3", "t.py").mutated(tmp_path)
    with pytest.raises(ConfigError, match=r"gone\.py: no such file"):
        Mutation("plus", "gone.py", "1", "3", "t.py").mutated(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name = "a"\nfile = "f"\noriginal = "x"\nreplacement = "y"', "expected name, file, original"),
        ('name = "a"\nfile = "f"\noriginal = "x"\nreplacement = "x"\ntest = "t"', "it changes nothing"),
    ],
)
def test_a_list_that_cannot_be_read(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "list.toml").write_text(f"[[mutation]]\n{text}\n")
    with pytest.raises(ConfigError, match=problem):
        read_mutations(tmp_path / "list.toml")


def test_caught_and_not_caught(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "formula.py").write_text("def area(width):\n    return width * width\n")
    tests = ("def test_small():\n    assert area(2) == 4\n", "def test_large():\n    assert area(3) == 9\n")
    (source / "test_it.py").write_text("from formula import area\n" + "".join(tests))
    for place in ("models", "rooms/models"):  # weights lie at the top, code below a package
        (source / place).mkdir(parents=True)
        (source / place / "one.py").touch()
    copy = Copy(tmp_path / "copy", source)
    assert [path.name for path in (tmp_path / "copy/tree").glob("**/models")] == ["models"]
    assert (tmp_path / "copy/tree/rooms/models/one.py").is_file()
    double = Mutation("double", "formula.py", "width * width", "width * 2", "test_it.py")
    assert copy.run(["test_it.py"])[0] == 0
    status, printed = copy.run_mutated(double)
    assert status == 1 and first_failure(printed) == "test_it.py::test_large"
    blind = Mutation("double", "formula.py", "width * width", "width * 2", "test_it.py::test_small")
    assert copy.run_mutated(blind)[0] == 0
    broken = Mutation("broken", "formula.py", "def area", "def are", "test_it.py")
    assert copy.run_mutated(broken)[0] not in (0, 1)  # a test that cannot be imported has caught nothing
    assert copy.run(["test_it.py"])[0] == 0  # the copy is as it was
    assert (source / "formula.py").read_text() == "def area(width):\n    return width * width\n"


def test_names_are_chosen_in_their_own_order() -> None:
    assert chosen(["a", "b", "c"], "c,a") == ["a", "c"] and chosen(["a"], None) == ["a"]
    with pytest.raises(ConfigError, match="only=d: no such name"):
        chosen(["a"], "d")
