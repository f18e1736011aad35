"""Hydra without what it does over and over: reading the same files, merging the same groups.

A composition has two parts. What the chosen groups give follows from the files and from the choices; values of keys are
put in behind. The first part is done once for each set of choices and copied, the second every time. Processes of one
fork server share, in a directory beside its socket, what they made of the project's own configurations.
`tests/launch/test_hydra_once.py` compares the whole with plain Hydra.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import hydra
import omegaconf._utils
import omegaconf.base
import pytest
import yaml
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from omegaconf import DictConfig, OmegaConf
from omegaconf.grammar_parser import parse

from finegrained_rlhf.launch.filling import fill_defaults

fill_defaults()
_load, _choose, _merge = (
    OmegaConf.load,
    config_loader_impl.create_defaults_list,
    ConfigLoaderImpl._compose_config_from_defaults_list,
)
_open, _begin = ConfigRepository.load_config, CachingConfigRepository.__init__
_parse_interpolation = cache(parse)
"""`${output_dir}/x` and the like: what their parser gives is only read."""
_LOADED: dict[str, bytes] = {}
_KEPT: dict[Any, bytes] = {}
_ROOT = Path(__file__).parents[2]


def _once(places: tuple[str, ...], key: Any, make: Callable[[], Any]) -> Any:
    """A copy of what was made for a key, by this process or by another one."""
    key = (places, key)
    if key not in _KEPT:
        ours = all(place.startswith(("pkghydra.", "structured", f"file{_ROOT}/")) for place in places)
        server = os.environ.get("FORK_SERVER") if ours else None
        name = sha256(repr(key).encode()).hexdigest()
        file = None if server is None else Path(server).with_name("compositions") / name
        if file is not None and file.is_file():
            _KEPT[key] = file.read_bytes()
        else:
            _KEPT[key] = pickle.dumps(make())
            if file is not None:
                with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as begun:
                    begun.write(_KEPT[key])
                os.replace(begun.name, file)
    return pickle.loads(_KEPT[key])


@contextmanager
def merged_once() -> Iterator[None]:
    """A file of the same text is parsed once in the life of the process, and the same groups are merged once.

    Both are kept pickled: reading that takes a fifth of the time of a deep copy.
    """

    def load(file: Any) -> Any:
        text = file.read() if hasattr(file, "read") else Path(file).read_text(encoding="utf-8")
        if text not in _LOADED:
            try:
                _LOADED[text] = pickle.dumps(_load(io.StringIO(text)))
            except yaml.YAMLError:
                if hasattr(file, "read"):
                    file.seek(0)
                return _load(file)  # it names the file
        return pickle.loads(_LOADED[text])

    def chosen(repo: Any, config_name: Any, overrides_list: Any, prepend_hydra: bool, skip_missing: bool) -> Any:
        given = [one for one in overrides_list if not one.is_sweep_override()]
        groups = [one for one in given if not isinstance(one.value(), dict) and repo.group_exists(one.key_or_group)]
        key = ("chosen", config_name, tuple(one.input_line for one in groups), prepend_hydra, skip_missing)
        found = _once(_places(repo), key, lambda: _choose(repo, config_name, groups, prepend_hydra, skip_missing))
        return dataclasses.replace(found, config_overrides=[one for one in given if one not in groups])

    def merged(self: Any, defaults: Any, repo: Any) -> Any:
        parts = tuple((one.config_path, one.package, one.is_self, one.primary) for one in defaults)
        return _once(_places(repo), ("merged", parts), lambda: _merge(self, defaults, repo))

    def opened(self: Any, config_path: str) -> Any:
        return _once(_places(self), ("opened", config_path), lambda: _open(self, config_path))

    def begun(self: Any, delegate: Any) -> None:
        self.delegate, self.cache = copy.copy(delegate), {}  # where it looks is set anew, never changed in place

    with _hydra_with(load, chosen, merged, opened, begun), pytest.MonkeyPatch.context() as patch:
        for module in (omegaconf.base, omegaconf._utils):
            patch.setattr(module, "parse", _parse_interpolation)
        yield


@contextmanager
def plain_hydra() -> Iterator[None]:
    """Hydra as it comes, within `merged_once`."""
    with _hydra_with(_load, _choose, _merge, _open, _begin):
        yield


@contextmanager
def _hydra_with(load: Any, choose: Any, merge: Any, open_file: Any, begin: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", staticmethod(load))
        patch.setattr(config_loader_impl, "create_defaults_list", choose)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge)
        patch.setattr(ConfigRepository, "load_config", open_file)
        patch.setattr(CachingConfigRepository, "__init__", begin)
        yield


def _places(repo: Any) -> tuple[str, ...]:
    """Where a repository reads configurations."""
    return tuple(f"{source.scheme()}{source.path}" for source in repo.get_sources())


def compose(script: str, overrides: Sequence[str] = ()) -> DictConfig:
    """`hydra.compose` over the project's configurations, done once for each command line in the life of a process."""
    return cast(DictConfig, pickle.loads(_composed(script, tuple(overrides))))


@cache
def _composed(script: str, overrides: tuple[str, ...]) -> bytes:
    return pickle.dumps(hydra.compose(script, overrides=list(overrides)))
