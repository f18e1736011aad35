"""Building an index and searching one: the jobs behind `finegrained build-index` and `finegrained search`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.core.markers import (
    CorpusPath,
    IndexPath,
    InputFile,
    OutputDirectory,
    OutputFile,
    at_least,
    harmless,
)
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.protocol import Hit, Retriever, RetrieverConfig
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.retrieval.runs import write_trec_run
from finegrained_rlhf.runtime.console import ProgressBar

_STREAM = "-"


@dataclass(frozen=True)
class BuildIndex(Settings):
    """Index a corpus; the same command goes on where it was stopped.

    Attributes:
        corpus: file (`.jsonl`, `.tsv`, either perhaps with `.gz`) or a directory of them, in the forms of
            `corpus.py`.
        output_dir: directory of the index.
        retriever: what to build.
    """

    corpus: CorpusPath
    output_dir: OutputDirectory
    retriever: RetrieverConfig = field(default_factory=Bm25Config)

    def run(self) -> None:
        """Build.

        Raises:
            DataError: a broken or empty corpus.
            ConfigError: the directory holds another index.
        """
        self.retriever.build(self.corpus, Path(self.output_dir))
        print(f"index -> {self.output_dir}")


@dataclass(frozen=True)
class Query:
    """One query.

    Attributes:
        id: names it in what is written.
        text: what is searched for.
    """

    id: str
    text: str


@dataclass(frozen=True)
class Search(Settings):
    """Search an index for queries of the command line or of a file.

    Attributes:
        index: directory of the index.
        queries: texts; their ids are 1, 2, ….
        input: instead of `queries`: `.jsonl` with `id` and `query`, `.tsv` with the same two columns, or any other
            text file with one query a line; `-` reads such lines from standard input.
        output: `-` for standard output, or a file. A name that ends in `.jsonl`, and standard output, get one JSON
            object a query: `{id, query, hits: [{id, score}]}`. Any other name gets a TREC run.
        k: hits a query.
        corpus: file or directory of the corpus; given it, JSON hits also hold `title` and `text`.
        name: of the TREC run.
        batch_size: queries that are searched together.
        retriever: settings that the index must have been built with; by default those that it has.
    """

    index: IndexPath
    queries: Sequence[str] = ()
    input: InputFile | None = None
    output: OutputFile = _STREAM
    k: Annotated[int, at_least(1)] = 10
    corpus: CorpusPath | None = None
    name: str = "finegrained_rlhf"
    batch_size: Annotated[int, at_least(1), harmless] = 64
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)

    def __post_init__(self) -> None:
        if self.queries and self.input is not None:
            raise ConfigError("input: expected either input or queries")
        if not all(text.strip() for text in self.queries):
            raise ConfigError(f"queries: expected texts with words, got {list(self.queries)}")
        if self.corpus is not None and not self._json:
            raise ConfigError("corpus: a TREC run holds no texts; write to a .jsonl file or to -")

    @property
    def _json(self) -> bool:
        return self.output == _STREAM or self.output.endswith(".jsonl")

    def run(self) -> None:
        """Search and write.

        Raises:
            DataError: broken queries, no finished index, or a passage that `corpus` lacks; nothing is written then.
            ConfigError: no query is given, or the index was built with other settings.
        """
        if not self.queries and self.input is None:
            raise ConfigError("give input=FILE, or queries=['…']")
        queries = [Query(str(i), text) for i, text in enumerate(self.queries, 1)]
        queries = queries if self.input is None else read_queries(self.input)
        retriever = self.retriever.open(Path(self.index))
        results = search_all(retriever, [query.text for query in queries], self.k, self.batch_size)
        if not self._json:
            write_trec_run(
                self.output, {query.id: hits for query, hits in zip(queries, results, strict=True)}, self.name
            )
        else:
            self._write_json(queries, results)
        if self.output != _STREAM:
            print(f"{len(queries)} queries -> {self.output}")

    def _write_json(self, queries: Sequence[Query], results: Sequence[Sequence[Hit]]) -> None:
        passages: dict[str, Passage] = {}
        if self.corpus is not None:
            passages = Corpus(self.corpus).find({hit.id for hits in results for hit in hits})
        rows = [
            {"id": query.id, "query": query.text, "hits": [hit_row(hit, passages.get(hit.id)) for hit in hits]}
            for query, hits in zip(queries, results, strict=True)
        ]
        if self.output != _STREAM:
            write_jsonl(self.output, rows)
            return
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))


def search_all(retriever: Retriever, queries: Sequence[str], k: int, batch_size: int) -> list[list[Hit]]:
    """The best passages for each query, searched in batches under a progress bar."""
    results: list[list[Hit]] = []
    with ProgressBar("searching", len(queries), "queries", len(queries) > batch_size) as bar:
        for start in range(0, len(queries), batch_size):
            batch = queries[start : start + batch_size]
            results += retriever.search(batch, k)
            bar.update(len(batch))
    return results


def hit_row(hit: Hit, passage: Passage | None) -> dict[str, Any]:
    """A hit for JSON, with title and text where the passage is given."""
    row: dict[str, Any] = {"id": hit.id, "score": round(hit.score, 6)}
    return row if passage is None else {**row, "title": passage.title, "text": passage.text}


def read_queries(path: str) -> list[Query]:
    """The queries of a file or of standard input (`-`), in one of the forms of `Search.input`.

    Raises:
        DataError: naming file, line or record, and field.
    """
    queries = list(_read_jsonl(path) if path.endswith(".jsonl") else _read_lines(path))
    if not queries:
        raise DataError("holds no query, expected at least one", file=path)
    seen: set[str] = set()
    for query in queries:
        if query.id in seen:
            raise DataError("this id occurs twice", file=path, record=query.id, field="id")
        seen.add(query.id)
    return queries


def _read_jsonl(path: str) -> Iterator[Query]:
    for number, row in enumerate(read_jsonl(path)):
        for name in ("id", "query"):
            if not isinstance(row.get(name), str):
                problem = f"got {type(row[name]).__name__}" if name in row else "it is missing"
                raise DataError(f"expected a string, {problem}", file=path, record=number, field=name)
        yield Query(row["id"], row["query"])


def _read_lines(path: str) -> Iterator[Query]:
    try:
        text = sys.stdin.read() if path == _STREAM else Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("no such file", file=path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip():
            continue
        if not path.endswith(".tsv"):
            yield Query(str(number), line)
        elif line.count("\t") == 1:
            yield Query(*line.split("\t"))
        else:
            raise DataError(f"expected id and query, separated by one tab, got {line!r}", file=f"{path}:{number}")
