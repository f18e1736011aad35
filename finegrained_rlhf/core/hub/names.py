"""Names of models and data sets on the Hugging Face Hub, as a user writes them.

A model is `org/name` or `org/name@revision`; a data set `org/name:split`, `org/name:config:split` or either with
`@revision` behind the name. What exists on this machine under the same text is always meant first, and what looks like
a path (`./x`, `/x`, `x`, `a/b/c`) is never a name. Asks no server and no cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.errors import ConfigError

HubKind = Literal["model", "dataset"]

_PART = r"[A-Za-z0-9](?:[\w-]|\.(?!\.))*"
_NAME = rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[\w][\w./-]*))?"
_MODEL = re.compile(_NAME, re.ASCII)
_DATA_SET = re.compile(rf"{_NAME}(?::(?P<config>[\w.-]+))?:(?P<split>[\w.-]+(?:\[[^\]]*\])?)", re.ASCII)
_LONGEST = 96


@dataclass(frozen=True)
class HubName:
    """A model or a data set on the Hub.

    Attributes:
        name: `org/name`.
        revision: branch, tag or commit; None is the main branch.
        config: of a data set that has several; None is its only one.
        split: of a data set (`train`, `train[:1000]`); empty for a model.
    """

    name: str
    revision: str | None = None
    config: str | None = None
    split: str = ""


def model_name(text: str | Path, revision: str | None = None) -> HubName | None:
    """The model that a text names on the Hub; None where it is no such name.

    Args:
        text: as the user wrote it.
        revision: given by a key of its own.

    Raises:
        ConfigError: it is a name with a revision, and another one is given beside it.
    """
    match = _MODEL.fullmatch(str(text))
    if match is None or not _is_repository(match["name"]):
        return None
    if revision is not None and match["revision"] is not None and match["revision"] != revision:
        raise ConfigError(f"{text}: the name says revision {match['revision']}, the key revision says {revision}")
    return HubName(match["name"], match["revision"] if revision is None else revision)


def data_set_name(text: str | Path) -> HubName | None:
    """The data set and split that a text names on the Hub; None where it is no such name."""
    match = _DATA_SET.fullmatch(str(text))
    if match is None or not _is_repository(match["name"]):
        return None
    return HubName(match["name"], match["revision"], match["config"], match["split"])


def _is_repository(name: str) -> bool:
    """What the Hub itself refuses in a name that has the right form."""
    parts = name.split("/")
    ends = any(part.endswith(("-", ".")) for part in parts)
    return len(name) <= _LONGEST and "--" not in name and not ends and not name.endswith(".git")


def named_on_hub(config: Mapping[str, Any], key: str, value: str) -> tuple[HubKind, HubName] | None:
    """The kind (`model` or `dataset`) and name of what a key takes from the Hub; None where a file or nothing is meant.

    Args:
        config: the mapping that the key stands in; its `revision` counts where the key is `path`.
        key: the key.
        value: its value.

    Raises:
        ConfigError: two different revisions are given.
    """
    if Path(value).exists():
        return None
    if (name := data_set_name(value)) is not None:
        return "dataset", name
    revision = config.get("revision") if key == "path" else None
    hub_name = model_name(value, revision if isinstance(revision, str) else None)
    return None if hub_name is None else ("model", hub_name)
