"""Tests with the engines themselves, each in its own environment (`make test-engines`); elsewhere nothing is here."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["test_engines_vllm.py"]
