"""What a class takes, read from its source, through the doors of packages too, is what the class itself says."""

from __future__ import annotations

import dataclasses
import pkgutil
from importlib import import_module

import pytest

from finegrained_rlhf.launch.checks.declared import declared, find

PACKAGES = ["reward_models"] + [
    module.name
    for top in ("finegrained_rlhf", "reward_models")
    for module in pkgutil.walk_packages(import_module(top).__path__, f"{top}.")
    if module.ispkg
]
DOORS = [name for name in PACKAGES if "__dir__" in vars(import_module(name))]


def test_the_doors_are_found() -> None:
    assert {"finegrained_rlhf.training.ppo", "finegrained_rlhf.report", "finegrained_rlhf.models.tiny"} <= set(DOORS)


@pytest.mark.parametrize("package", DOORS)
def test_every_name_at_a_door_is_read_from_source_as_the_class_has_it(package: str) -> None:
    module = import_module(package)
    assert dir(module)
    for name in dir(module):
        kind = getattr(module, name)
        found = find(f"{package}.{name}")
        assert found is not None and found[0].name == name == kind.__name__, f"{package}.{name}"
        if dataclasses.is_dataclass(kind):
            declaration = declared(f"{package}.{name}")
            assert declaration is not None
            needed = {
                f.name: f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
                for f in dataclasses.fields(kind)
                if f.init
            }
            assert {key: field.required for key, field in declaration.fields.items()} == needed, f"{package}.{name}"


def test_a_name_that_no_door_has() -> None:
    assert find("finegrained_rlhf.training.ppo.TrainPPOO") is None
    with pytest.raises(AttributeError, match="no attribute 'TrainPPOO'"):
        getattr(import_module("finegrained_rlhf.training.ppo"), "TrainPPOO")  # noqa: B009
