"""The command line of a benchmark: `key=value` words, an error in one line, the exit status. Knows no benchmark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError


def read_arguments(arguments: Sequence[str], known: Sequence[str], needed: Sequence[str] = ()) -> dict[str, str]:
    """`key=value` words as a dictionary.

    Raises:
        ConfigError: a word is not `key=value`, its key is unknown or given twice, or one that is needed is missing.
    """
    found: dict[str, str] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ConfigError(f"{word!r}: expected key=value with one of the keys {', '.join(known)}")
        if key not in known:
            raise ConfigError(f"{key}: no such key; expected one of {', '.join(known)}")
        if key in found:
            raise ConfigError(f"{key}: given twice")
        found[key] = value
    for key in needed:
        if key not in found:
            raise ConfigError(f"{key}=… is missing")
    return found


def run_main(main: Callable[[Sequence[str]], Mapping[str, Any] | None]) -> NoReturn:
    """Run a benchmark with the words of the command line and end the process.

    The status is 0; 1 where the result has `equal` and something in it is not `ok`; 2 for what the user got wrong.
    """
    try:
        result = main(sys.argv[1:]) or {}
    except FineGrainedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0 if all(found["ok"] for found in result.get("equal", {}).values()) else 1)
