"""Models and data sets of the Hugging Face Hub on this machine: the ordinary cache, filled where there is a connection.

HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and HF_TOKEN mean what they always do. Takes safetensors, JSON, tokenizers and
tables; weights in other formats are never fetched.

A model is `org/name` or `org/name@revision`; a data set `org/name:split`, `org/name:config:split` or either with
`@revision` behind the name. What exists on this machine under the same text is always meant first, and what looks
like a path (`./x`, `/x`, `x`, `a/b/c`) is never a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError, ModelError

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


_FILES: dict[HubKind, list[str]] = {
    "model": ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"],
    "dataset": ["*.parquet", "*.json", "*.jsonl", "*.jsonl.gz", "README.md"],
}
_OTHER_FORMATS = ["onnx/*", "openvino/*", "original/*", "*.fp16.safetensors"]
_SNAPSHOTS: dict[tuple[str, HubKind, HubName], Path] = {}


def snapshot(name: HubName, kind: HubKind = "model") -> Path:
    """The directory of a model or data set in the cache; fetched first where it is not there and there is a connection.

    The directory's name is the commit. A process asks the Hub once for each name.

    Raises:
        ModelError: a model is not cached and cannot be fetched; says how to fetch it elsewhere.
        DataError: the same for a data set.
    """
    import huggingface_hub
    from huggingface_hub import constants

    key = (constants.HF_HUB_CACHE, kind, HubName(name.name, name.revision))
    if key not in _SNAPSHOTS or not _SNAPSHOTS[key].is_dir():
        try:
            directory = huggingface_hub.snapshot_download(
                name.name,
                repo_type=kind,
                revision=name.revision,
                cache_dir=constants.HF_HUB_CACHE,
                allow_patterns=_FILES[kind],
                ignore_patterns=_OTHER_FORMATS,
                local_files_only=constants.HF_HUB_OFFLINE,
            )
        except (OSError, ValueError) as error:
            raise _explained(name, kind, error) from None
        _SNAPSHOTS[key] = Path(directory)
    return _SNAPSHOTS[key]


def place_of_model(path: str | Path, revision: str | None = None) -> Path:
    """Where a model lies: the path itself, or the directory in the cache of the Hub name that it is.

    Raises:
        ModelError: a Hub name that is neither cached nor to be fetched, or a revision of what is no Hub name.
    """
    name = None if Path(path).exists() else model_name(path, revision)
    if revision is not None and name is None:
        raise ModelError(f"{path}: a revision ({revision}) is for a model of the Hub, and this is none")
    return Path(path) if name is None else snapshot(name)


def is_offline() -> bool:
    """Whether the user has switched the connection to the Hub off."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def require_reachable(name: HubName, kind: HubKind = "model") -> None:
    """Where there is no connection by choice (HF_HUB_OFFLINE=1), require what is named to be in the cache.

    Raises:
        ModelError: a model is not; says how to fetch it.
        DataError: a data set is not.
    """
    if is_offline():
        snapshot(name, kind)


def commit_of_snapshot(directory: Path) -> str | None:
    """The commit of a directory in the cache; None for any other directory."""
    return directory.name if directory.parent.name == "snapshots" else None


def _explained(name: HubName, kind: HubKind, error: Exception) -> FineGrainedError:
    """One line for what the Hub or its cache refused."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    what = "data set" if kind == "dataset" else "model"
    revision = f" --revision {name.revision}" if name.revision else ""
    fetch = f"hf download {name.name}{' --repo-type dataset' if kind == 'dataset' else ''}{revision}"
    if isinstance(error, GatedRepoError):
        problem = f"the Hub's {what} asks for consent: accept its terms on its page, then hf auth login and {fetch}"
    elif isinstance(error, RevisionNotFoundError):
        problem = f"the Hub's {what} has no revision {name.revision}"
    elif isinstance(error, RepositoryNotFoundError):
        problem = f"no such file or directory, and the Hub has no such {what} (or it is private: hf auth login)"
    else:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        part = f"revision {name.revision} of the" if name.revision else "the"
        problem = (
            f"no such file or directory, and {part} Hub's {what} is not, or only in part, in the cache "
            f"{constants.HF_HUB_CACHE}; {why}. Where there is a connection: {fetch}"
        )
    text = f"{name.name}: {problem}"
    return DataError(text) if kind == "dataset" else ModelError(text)
