"""What a configuration may name that was read from a file of a run: the classes of the project's own configurations.

Hydra builds whatever a `_target_` names, and a run directory may come from a stranger. What the user types, or writes
into a file of `--config-dir`, is not looked at here. Imports nothing that is named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import is_ours
from finegrained_rlhf.launch.configurations import conf_directories

TRUST = "trust"
"""The key that admits classes by name; it counts on the command line alone."""
_REACH_OUT = frozenset(
    {
        "finegrained_rlhf.runtime.RemoteConfig",
        "finegrained_rlhf.retrieval.SearchServerConfig",
        "finegrained_rlhf.retrieval.OpenSearchConfig",
    }
)
"""Classes of ours that say which server is asked, and which environment variable is sent to it as a key."""
_NAMED = re.compile(r"""_target_["']?\s*:\s*["']?(\w+(?:\.\w+)+)""")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@cache
def classes_of_project() -> frozenset[str]:
    """The classes that the project's configurations (`conf/`) and those of packages that join it name, but for those
    that reach another machine.
    """
    paths = (path for directory in conf_directories() for path in directory.rglob("*.yaml"))
    names = (name for path in paths for name in _NAMED.findall(path.read_text("utf-8", "replace")))
    return frozenset(name for name in names if is_ours(name)) - _REACH_OUT


def trusted_classes(config: Mapping[str, Any], given: Sequence[str]) -> tuple[str, ...]:
    """The classes that `trust=…` admits.

    Args:
        config: resolved.
        given: the arguments of the command line, or of a step.

    Raises:
        ConfigError: it holds no names of classes, or no argument gave it.
    """
    value = config.get(TRUST)
    if value is None:
        return ()
    if not any(argument.lstrip("+").partition("=")[0] == TRUST for argument in given):
        raise ConfigError(f"{TRUST}: counts on the command line alone, and a file gives it: {value!r}")
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and _CLASS.fullmatch(name) for name in names):
        raise ConfigError(f"{TRUST}: expected MODULE.CLASS, or a list of such names, got {value!r}")
    return tuple(names)


def check_foreign(config: Mapping[str, Any], key: str, file: Path, trusted: Collection[str] = ()) -> None:
    """Refuse a part of a run's configuration that could build something else than the project's own configurations.

    Args:
        config: plain containers, as they stand in the file.
        key: dotted, under which they stand there.
        file: for the message.
        trusted: further classes that the user admits.

    Raises:
        ConfigError: the first class that is not admitted, instruction to Hydra, or interpolation, in one line.
    """
    for problem in _problems(config, key, trusted):
        raise ConfigError(f"{file}: {problem}")


def _problems(value: Any, key: str, trusted: Collection[str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            dotted = f"{key}.{name if str(name).isprintable() else repr(name)}"
            if name == "_target_":
                if (problem := _refused(item, trusted)) is not None:
                    yield f"{dotted}: {problem}"
            elif str(name).startswith("_") and str(name).endswith("_"):
                yield f"{dotted}: {item!r}: a run's configuration has no such key"
            elif "${" in str(name):
                yield f"{dotted}: an interpolation, which is not resolved here"
            else:
                yield from _problems(item, dotted, trusted)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _problems(item, f"{key}[{place}]", trusted)
    elif isinstance(value, str) and "${" in value:
        yield f"{key}: {value!r}: an interpolation, which is not resolved here; expected its value"


def _refused(target: Any, trusted: Collection[str]) -> str | None:
    """Why a `_target_` is not built; None where it is admitted."""
    if not isinstance(target, str) or not _CLASS.fullmatch(target):
        return f"{target!r}: expected MODULE.CLASS"
    if target in trusted or target in classes_of_project():
        return None
    what = "it reaches another machine" if target in _REACH_OUT else "it is no class of this project's configurations"
    return f"{target}: {what}, and this file is not trusted; where you know it: {TRUST}={target}"
