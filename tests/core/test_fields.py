"""A setting is declared once: what its annotation says is what a check, a default and a path are taken from."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from finegrained_rlhf.core import fields
from finegrained_rlhf.core.fields import (
    MISSING,
    Unwritable,
    filled,
    places,
    problem_of_value,
    settings_of,
    takes_any,
    written,
)
from finegrained_rlhf.core.markers import (
    DataName,
    InputFile,
    ModelName,
    OutputDirectory,
    Reads,
    Seed,
    Writes,
    above,
    at_least,
    at_most,
    below,
    harmless,
    markers,
)

Count = Annotated[int, at_least(1)]
Share = Annotated[float, at_least(0), at_most(1)]


@dataclass(frozen=True)
class Inner:
    """A part.

    Attributes:
        share: of something,
            on two lines.
        word: one of two.
    """

    share: Share = 0.5
    word: Literal["one", "two"] = "one"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job.

    Attributes:
        data: a file.
        count: at least one.
    """

    data: DataName
    model: ModelName | None = None
    count: Count = 3
    rate: Annotated[float, above(0), below(1)] | None = None
    inner: Inner = Inner(share=0.25)
    parts: Mapping[str, Inner] = field(default_factory=dict)
    sizes: Annotated[Sequence[Count], at_least(1)] = (2,)
    seed: Seed = 0
    unknown: OnlyForTypeChecking | None = None  # type: ignore[name-defined]  # noqa: F821


class Loaded:
    """Not a dataclass.

    Args:
        path: of it.
    """

    def __init__(self, path: str | Path, size: int = 2, **rest: Any) -> None:
        self.path = path


def target(kind: type) -> str:
    return f"{__name__}.{kind.__name__}"


def test_what_a_class_takes() -> None:
    settings = settings_of(Job)
    assert [*settings] == ["data", "model", "count", "rate", "inner", "parts", "sizes", "seed", "unknown"]
    assert settings["data"].default is MISSING and settings["parts"].default == {}
    assert settings["count"].documentation == "at least one." and settings["rate"].documentation == ""
    assert settings_of(Inner)["share"].documentation == "of something, on two lines."
    assert markers(settings["model"].annotation) == (Reads("model"),)
    assert settings["unknown"].annotation is Any


def test_what_another_callable_takes() -> None:
    settings = settings_of(Loaded)
    assert [*settings] == ["path", "size"] and settings["path"].documentation == "of it."
    assert takes_any(Loaded) and not takes_any(Job)


def problem(kind: type, name: str, value: Any) -> str | None:
    return problem_of_value(value, settings_of(kind)[name].annotation)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("count", 0, "expected at least 1, got 0"),
        ("rate", 0.0, "expected null or above 0 and below 1, got 0.0"),
        ("rate", 1.0, "expected null or above 0 and below 1, got 1.0"),
        ("sizes", (), "expected at least 1, got ()"),
        ("sizes", (1, 0), "expected at least 1, got 0"),
        ("seed", -1, "expected at least 0 and at most 9223372036854775807, got -1"),
    ],
)
def test_a_value_out_of_its_range(name: str, value: Any, said: str) -> None:
    assert problem(Job, name, value) == said


def test_a_word_that_is_none_of_them() -> None:
    assert problem(Inner, "word", "three") == "expected one of one, two, got 'three'"
    assert problem(Inner, "share", 1.5) == "expected at least 0 and at most 1, got 1.5"


def test_values_in_range() -> None:
    for name, value in {"count": 1, "rate": 0.5, "sizes": [1, 2], "seed": 2**63 - 1}.items():
        assert problem(Job, name, value) is None
    assert problem_of_value("free", Literal["a"] | str) is None
    assert problem_of_value(None, Annotated[int, at_least(1)] | None) is None
    assert problem_of_value(3, Annotated[int, at_most(2)]) == "expected at most 2, got 3"
    assert problem_of_value({"a": 0}, Mapping[str, Count]) == ".a: expected at least 1, got 0"


def test_defaults_are_filled_in_below_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "PROJECT", (__name__.partition(".")[0],))
    given = {"_target_": target(Job), "count": "${settings.count}", "inner": {"word": "two"}, "parts": {"a": {}}}
    assert filled(given, missing="???") == {
        "_target_": target(Job),
        "data": "???",
        "model": None,
        "count": "${settings.count}",
        "rate": None,
        "inner": {"_target_": target(Inner), "share": 0.25, "word": "two"},
        "parts": {"a": {"_target_": target(Inner), "share": 0.5, "word": "one"}},
        "sizes": [2],
        "seed": 0,
        "unknown": None,
    }
    assert "data" not in filled(given)
    of_its_own = {"_target_": target(Job), "inner": {"_target_": target(Inner)}}
    assert filled(of_its_own)["inner"]["share"] == 0.5  # its class's own default, not that of the class above
    free = {"free": {"_target_": "elsewhere.X", "a": [1]}}
    assert filled(free) == free


@dataclass(frozen=True)
class Marked:
    """Paths, and what may change."""

    one: InputFile
    several: Sequence[InputFile] | Mapping[str, InputFile] = ()
    resume: Annotated[Literal["auto"] | InputFile, harmless] = "auto"
    output_dir: OutputDirectory = "out"
    inner: Inner | None = None


def test_the_values_of_a_configuration_with_what_their_class_says_of_them() -> None:
    marked = {"_target_": target(Marked), "one": "a", "several": ["b", "c"], "resume": "auto", "output_dir": "out"}
    config = {"parts": [marked | {"inner": {"_target_": target(Inner), "share": 1.0}}], "several": "no class's"}
    known = {place.key: place for place in places(config)}
    keys = ("one", "several", "resume", "output_dir", "inner", "inner.share")
    assert [*known] == [f"parts[0].{key}" for key in keys]
    assert [key for key, place in known.items() if place.is_harmless] == ["parts[0].resume", "parts[0].output_dir"]
    assert known["parts[0].output_dir"].mark(Writes) == Writes(directory=True)
    read = {place.name: [*place.paths] for place in known.values() if place.mark(Reads)}
    assert read == {"one": ["a"], "several": ["b", "c"], "resume": []}
    named = dict(marked, several={"x": "d"}, resume="run")
    assert [path for place in places(named) if place.mark(Reads) for path in place.paths] == ["a", "d", "run"]


def test_no_class_is_imported_for_what_a_configuration_says() -> None:
    assert [*places({"_target_": "antigravity.X", "path": "a"})] == [] and "antigravity" not in sys.modules


def test_a_default_as_a_configuration_holds_it() -> None:
    assert written(Inner()) == {"_target_": target(Inner), "share": 0.5, "word": "one"}
    assert written((Path("a"), {"b": None})) == ["a", {"b": None}]
    with pytest.raises(Unwritable):
        written(object())
