"""Tests with the engines themselves, each in its own environment (`make test-engines`); elsewhere nothing is here."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [f"test_engines_{name}.py" for name in ("vllm", "trl", "verl", "skyrl") if not find_spec(name)]
