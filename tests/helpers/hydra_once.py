"""Hydra without what it does over and over in one process: parsing the same files, composing a command line twice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from hydra._internal.hydra import Hydra
from hydra.types import RunMode

_PARSED: dict[str, Any] = {}


@contextmanager
def parsed_once() -> Iterator[None]:
    """A file of the same text is parsed once in the life of the process; the parser takes a fifth of a composition."""
    parse = yaml.load

    def load(stream: Any, Loader: Any) -> Any:
        text = stream if isinstance(stream, str) else stream.read()
        if text not in _PARSED:
            _PARSED[text] = parse(text, Loader)
        return copy.deepcopy(_PARSED[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", load)
        yield


@contextmanager
def composed_once() -> Iterator[None]:
    """`hydra.main` composes a command line to learn whether it is a multirun, and again to run it: here it is none."""
    with parsed_once(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hydra, "get_mode", lambda self, config_name, overrides: RunMode.RUN)
        yield
