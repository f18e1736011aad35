"""Hydra without what it does over and over in one process: parsing the same files, composing a command line twice."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import hydra
import pytest
import yaml
from hydra._internal.hydra import Hydra
from hydra.types import RunMode
from omegaconf import DictConfig

_PARSED: dict[str, bytes] = {}


@contextmanager
def parsed_once() -> Iterator[None]:
    """A file of the same text is parsed once in the life of the process; the parser takes a fifth of a composition."""
    parse = yaml.load

    def load(stream: Any, Loader: Any) -> Any:
        text = stream if isinstance(stream, str) else stream.read()
        if text not in _PARSED:
            _PARSED[text] = pickle.dumps(parse(text, Loader))
        return pickle.loads(_PARSED[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", load)
        yield


@contextmanager
def composed_once() -> Iterator[None]:
    """`hydra.main` composes a command line to learn whether it is a multirun, and again to run it: here it is none."""
    with parsed_once(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hydra, "get_mode", lambda self, config_name, overrides: RunMode.RUN)
        yield


def compose(script: str, overrides: Sequence[str] = ()) -> DictConfig:
    """`hydra.compose` over the project's configurations, done once for each command line in the life of a process."""
    return copy.deepcopy(_composed(script, tuple(overrides)))


@cache
def _composed(script: str, overrides: tuple[str, ...]) -> DictConfig:
    return hydra.compose(script, overrides=list(overrides))
