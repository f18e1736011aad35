"""Measurements collect garbage before they begin: here without what earlier test files left."""

from __future__ import annotations

import pytest
from garbage import collect_rarely


@pytest.fixture(scope="module", autouse=True)
def older_objects_stay() -> None:
    """What a worker holds before a file begins is left out of its collections."""
    collect_rarely()
