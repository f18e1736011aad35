"""Tests with the engines themselves, in their own environments: `make test-engines`, `make test-trl`, `make test-verl`,
`make test-skyrl`. Elsewhere there is nothing here.
"""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [f"test_engines_{name}.py" for name in ("vllm", "trl", "verl", "skyrl") if not find_spec(name)]
