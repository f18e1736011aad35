"""hypothesis for the engine's tests. Where it is not installed, as on a bare GPU machine, its tests are skipped."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("hypothesis"):
    from hypothesis import given as given
    from hypothesis import settings as settings
    from hypothesis import strategies as st
else:

    class _Strategy:
        """Stands for every strategy and for what makes them; nothing is ever drawn."""

        def __call__(self, *arguments: Any, **options: Any) -> _Strategy:
            return self

        def __getattr__(self, name: str) -> _Strategy:
            return self

        def __or__(self, other: Any) -> _Strategy:
            return self

    st: Any = _Strategy()  # type: ignore[no-redef]

    def given(*strategies: Any, **named: Any) -> Any:  # type: ignore[no-redef]
        """Skips the test."""
        return pytest.mark.skip(reason="needs hypothesis")

    def settings(**options: Any) -> Any:  # type: ignore[no-redef]
        """Changes nothing."""
        return lambda test: test
