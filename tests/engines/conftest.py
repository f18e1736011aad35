"""Tests with the engines themselves, in their own environments: `make test-engines`. Elsewhere there is nothing here."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["test_engines_vllm.py"]
