"""What an index directory says about itself: which retriever built it, from which corpus, with which settings.

Any index of this package opens with the settings that stand in its record (`RecordedConfig`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.extensions import parts
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.retrieval.corpus import CorpusScan
from finegrained_rlhf.retrieval.protocol import Retriever, RetrieverConfig

_NAME = "index.json"
_FORMAT = 1


@dataclass(frozen=True)
class IndexRecord:
    """The record of an index.

    Attributes:
        kind: of retriever: `bm25`, `bm25_light`, `dense`, `opensearch`, or one below `retrievers` in a `parts.toml`.
        settings: everything that changes a score, ready for JSON. An index is opened with equal settings only.
        corpus: what was indexed.
        config: fields of the retriever's configuration that open the index again (`RecordedConfig`).
        statistics: of the finished index, ready for JSON.
        finished: the index can be opened.
    """

    kind: str
    settings: Mapping[str, Any]
    corpus: CorpusScan
    config: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = False

    def write(self, directory: Path) -> None:
        """Write it into an index directory."""
        write_json(directory / _NAME, {"format": _FORMAT, **asdict(replace(self, settings=dict(self.settings)))})


def read_index_record(directory: str | Path) -> IndexRecord:
    """The record of an index directory.

    Raises:
        DataError: there is none, it is damaged, or it is of another format.
    """
    path = Path(directory) / _NAME
    if not path.is_file():
        raise DataError(f"no index here (expected {path})", file=directory)
    fields = read_json(path)
    try:
        version = fields.pop("format")
        if version != _FORMAT:
            raise DataError(f"the index has format {version}, expected {_FORMAT}; build it again", file=path)
        return IndexRecord(**{**fields, "corpus": CorpusScan.from_json(fields["corpus"])})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"no record of an index ({error}); build it again", file=path) from None


def begin_index(directory: Path, record: IndexRecord) -> bool:
    """Start or continue an index: write its record where there is none.

    Returns:
        False where the same index is already finished.

    Raises:
        ConfigError: the directory holds an index of another corpus or with other settings, or something else.
    """
    if not (directory / _NAME).is_file():
        if directory.is_dir() and any(not path.name.startswith(".") for path in directory.iterdir()):
            raise ConfigError(f"{directory}: holds files that are not those of an index; give another directory")
        directory.mkdir(parents=True, exist_ok=True)
        record.write(directory)
        return True
    present = read_index_record(directory)
    _compare(present, record.kind, record.settings, directory)
    if present.corpus.fingerprint != record.corpus.fingerprint:
        raise ConfigError(
            f"{directory}: holds the index of another corpus ({present.corpus.passages} passages, this one has "
            f"{record.corpus.passages}); give another directory or delete it"
        )
    return not present.finished


def known_scan(directory: Path) -> CorpusScan | None:
    """The scan of the corpus that an earlier call left, for `Corpus.scan`; None where there is none."""
    return read_index_record(directory).corpus if (directory / _NAME).is_file() else None


def open_record(directory: Path, kind: str, settings: Mapping[str, Any]) -> IndexRecord:
    """The record of a finished index that was built with these settings.

    Raises:
        DataError: there is no index, or it is not finished.
        ConfigError: it is of another kind or was built with other settings.
    """
    record = read_index_record(directory)
    _compare(record, kind, settings, directory)
    if not record.finished:
        raise DataError("the index is not finished; run the same finegrained build-index command again", file=directory)
    return record


def _compare(record: IndexRecord, kind: str, settings: Mapping[str, Any], directory: Path) -> None:
    if record.kind != kind:
        raise ConfigError(f"{directory}: holds an index of kind {record.kind}, expected {kind}")
    other = [name for name in sorted({*record.settings, *settings}) if record.settings.get(name) != settings.get(name)]
    if other:
        differences = "; ".join(f"{name} {record.settings.get(name)!r}, here {settings.get(name)!r}" for name in other)
        raise ConfigError(
            f"{directory}: the index was built with other settings ({differences}); give those, or build another index"
        )


_CONFIGS = {  # by name: each kind's libraries are imported where it is used
    "bm25": "finegrained_rlhf.retrieval.bm25.retriever.Bm25Config",
    "bm25_light": "finegrained_rlhf.retrieval.bm25.retriever.Bm25LightConfig",
    "dense": "finegrained_rlhf.retrieval.dense.retriever.DenseConfig",
    "opensearch": "finegrained_rlhf.retrieval.engines.opensearch.OpenSearchConfig",
}


@dataclass(frozen=True)
class RecordedConfig(Settings):
    """The settings an index was built with, whatever its kind; it can open indexes only."""

    def build(self, corpus: str, directory: Path) -> None:
        """There are no settings to build with.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"retriever: name one to build an index with: {', '.join(_CONFIGS)}")

    def open(self, directory: Path) -> Retriever:
        """Open an index with its own settings.

        Raises:
            DataError: there is no finished index.
        """
        return config_of(directory).open(directory)


def config_of(directory: Path) -> RetrieverConfig:
    """The configuration that an index was built with.

    Raises:
        DataError: there is no index, or its kind or configuration is not known.
    """
    record = read_index_record(directory)
    kinds = {**parts("retrievers"), **_CONFIGS}
    if record.kind not in kinds:
        raise DataError(f"an index of kind {record.kind!r}, expected one of {', '.join(kinds)}", file=directory)
    server = record.config.get("server")
    if isinstance(server, Mapping) and server.get("user") is not None:
        raise DataError(
            f"the record asks {server.get('url')} with a user and a password of yours; name the server yourself: "
            f"retriever={record.kind}",
            file=directory,
            field="config.server.user",
        )
    module, _, name = kinds[record.kind].rpartition(".")
    try:
        return cast(RetrieverConfig, getattr(importlib.import_module(module), name)(**record.config))
    except TypeError as error:
        raise DataError(f"the index has a configuration that does not fit ({error})", file=directory) from None
