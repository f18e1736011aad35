"""The doors of packages: what they name is what `import *` gives, and importing them is cheap."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import finegrained_rlhf
import reward_models
from finegrained_rlhf.core.exports import lazy_exports


def doors() -> list[str]:
    """Every package whose names are imported when they are first asked for."""
    packages = [
        found.name
        for package in (finegrained_rlhf, reward_models)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if found.ispkg
    ]
    return [name for name in packages if "lazy_exports" in vars(importlib.import_module(name))]


def test_every_door_says_what_is_public() -> None:
    packages = doors()
    assert len(packages) > 20 and "finegrained_rlhf.personalization" in packages
    for name in packages:
        package = importlib.import_module(name)
        assert package.__all__ == dir(package) != [], name
        assert "lazy_exports" not in package.__all__, name


def test_import_star_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from finegrained_rlhf.personalization import *", names)
    package = importlib.import_module("finegrained_rlhf.personalization")
    assert sorted(names.keys() - {"__builtins__"}) == package.__all__ and names["Cipher"] is package.Cipher


def test_a_name_that_there_is_not() -> None:
    get, names = lazy_exports("package", {"Name": "module"})
    assert names() == ["Name"] == get("__all__")
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        get("other")
