"""Parameters of which some run in `make test`, and all in `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def seldom(values: Iterable[Any], often: Collection[Any]) -> list[Any]:
    """The values for `parametrize`, those that are not in `often` marked as slow; tuples are several arguments."""
    return [value if value in often else _slow(value) for value in values]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
