"""Opens any index of this package with the settings that stand in its record."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.retrieval.protocol import Retriever, RetrieverConfig
from finegrained_rlhf.retrieval.record import read_index_record

_CONFIGS = {  # by name: each kind's libraries are imported where it is used
    "bm25": ("finegrained_rlhf.retrieval.bm25.retriever", "Bm25Config"),
    "bm25_light": ("finegrained_rlhf.retrieval.bm25.light", "Bm25LightConfig"),
    "dense": ("finegrained_rlhf.retrieval.dense.retriever", "DenseConfig"),
    "opensearch": ("finegrained_rlhf.retrieval.engines.opensearch", "OpenSearchConfig"),
    "pyserini": ("finegrained_rlhf.retrieval.engines.pyserini", "PyseriniConfig"),
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
    if record.kind not in _CONFIGS:
        raise DataError(f"an index of kind {record.kind!r}, expected one of {', '.join(_CONFIGS)}", file=directory)
    server = record.config.get("server")
    if isinstance(server, Mapping) and server.get("user") is not None:
        raise DataError(
            f"the record asks {server.get('url')} with a user and a password of yours; name the server yourself: "
            f"retriever={record.kind}",
            file=directory,
            field="config.server.user",
        )
    module, name = _CONFIGS[record.kind]
    try:
        return cast(RetrieverConfig, getattr(importlib.import_module(module), name)(**record.config))
    except TypeError as error:
        raise DataError(f"the index has a configuration that does not fit ({error})", file=directory) from None
