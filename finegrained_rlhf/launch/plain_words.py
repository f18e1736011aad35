"""Plain words on the command line of commands whose arguments need no key: `finegrained runs outputs`,
`finegrained compare A B`; and keys that are called otherwise where their word is a group's.

Imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_OVERRIDE = re.compile(r"[+~]{0,2}[\w./@-]+=")


def with_keys(arguments: Sequence[str], key: str, *, several: bool = False) -> list[str]:
    """The arguments with plain words given to a key; overrides and options stay as they are.

    Args:
        arguments: as on the command line, without the program's name.
        key: what plain words are the value of.
        several: they make a list; else the last one counts.
    """
    plain = [word for word in arguments if word and not word.startswith("-") and not _OVERRIDE.match(word)]
    rest = [word for word in arguments if word not in plain]
    quoted = [_quoted(word) for word in plain]
    if not quoted:
        return rest
    return [*rest, f"{key}=[{','.join(quoted)}]" if several else f"{key}={quoted[-1]}"]


def with_long_keys(arguments: Sequence[str], keys: Mapping[str, str]) -> list[str]:
    """The arguments with other keys in place of some: `reward=marks` would choose an option of the group `reward`.

    Args:
        arguments: as on the command line, without the program's name.
        keys: what is written, by what is typed.
    """
    parts = [word.partition("=") for word in arguments]
    return [f"{keys.get(key, key)}{equals}{value}" for key, equals, value in parts]


def with_texts(arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The arguments with the values of some keys quoted, so that every character of them is one of a text.

    Args:
        arguments: as on the command line, without the program's name.
        keys: whose values are texts; one that is in quotes already, or `null`, stays as it is.
    """
    texts = []
    for word in arguments:
        key, equals, value = word.partition("=")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        texts.append(f"{key}={_quoted(value)}" if equals and key in keys and value != "null" and not quoted else word)
    return texts


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'") if "'" in word else word
    return f"'{escaped}'"
