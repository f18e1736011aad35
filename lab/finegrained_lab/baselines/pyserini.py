"""BM25 by Pyserini, the retriever of the thesis: Lucene through Anserini. Optional: it needs Pyserini and Java.

Pyserini's indexer and searchers are imported where they are used.

The index does not depend on k1 and b. Anserini orders equal scores by id, ascending, and lowers the later ones a
little, so that there are no ties left for trec_eval to break; published runs were made in this way. Scores of a pool
are Lucene's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.record import IndexRecord, begin_index, known_scan, open_record
from finegrained_rlhf.runtime.console import tracked

_KIND = "pyserini"
_LUCENE = "lucene"
_TOLD = 5  # last lines of a failed indexer


class PyseriniError(FineGrainedError):
    """Pyserini's indexer failed."""


@dataclass(frozen=True)
class PyseriniConfig(Settings):
    """A Lucene index made and searched by Pyserini, with its analyzer for English (Porter's stemmer, stop words).

    Attributes:
        k1: saturation of the counts.
        b: strength of the length normalisation.
        threads: of Java, while indexing and searching.
        progress: show a bar while the corpus is written for the indexer.
    """

    k1: Annotated[float, at_least(0)] = 0.82
    b: Annotated[float, at_least(0), at_most(1)] = 0.68
    threads: Annotated[int, at_least(1)] = 4
    progress: bool = True

    def build(self, corpus: str, directory: Path) -> None:
        """Index a corpus. Lucene's indexer cannot go on: where it was stopped, it begins anew.

        Raises:
            DataError: a broken or empty corpus.
            ConfigError: the directory holds an index of another corpus or kind, or Pyserini or Java is missing.
            PyseriniError: the indexer failed.
        """
        _pyserini()
        texts = Corpus(corpus)
        scan = texts.scan(known_scan(directory), self.progress)
        record = IndexRecord(_KIND, {}, scan, config=asdict(self))
        if not begin_index(directory, record):
            return
        with atomic_directory(directory / _LUCENE) as lucene:
            collection = directory / "collection"
            blank = _write_collection(texts, collection, scan.passages, self.progress)
            _index(collection, lucene, self.threads)
            shutil.rmtree(collection)
        indexed = _pyserini().searcher(str(directory / _LUCENE)).num_docs
        if indexed < scan.passages - len(blank):
            raise PyseriniError(f"{directory}: the indexer took {indexed} of {scan.passages} passages")
        replace(record, statistics={"passages": indexed, "blank": blank}, finished=True).write(directory)

    def open(self, directory: Path) -> PyseriniRetriever:
        """The retriever over an index.

        Raises:
            DataError: there is no index, or it is not finished.
            ConfigError: it is of another kind, or Pyserini or Java is missing.
        """
        record = open_record(directory, _KIND, {})
        library, path = _pyserini(), str(directory / _LUCENE)
        searcher = library.searcher(path)
        searcher.set_bm25(self.k1, self.b)
        return PyseriniRetriever(searcher, library.reader(path), self.threads, record.statistics["blank"])


class PyseriniRetriever:
    """Scores and searches by Lucene; a retriever as in `protocol`, but for the order of equal scores (see above).

    Args:
        searcher: a `LuceneSearcher` with its k1 and b.
        reader: a `LuceneIndexReader` of the same index.
        threads: of Java.
        blank: ids of passages without text, which Lucene does not take.
    """

    def __init__(self, searcher: Any, reader: Any, threads: int, blank: Sequence[str] = ()) -> None:
        self._searcher, self._reader, self._threads = searcher, reader, threads
        self._blank, self._known = frozenset(blank), set(blank)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The k best passages of each query, with Anserini's scores.

        Raises:
            ConfigError: k is less than 1.
        """
        if k < 1:
            raise ConfigError(f"k: expected at least 1 hit a query, got {k}")
        numbers = {query: str(i) for i, query in enumerate(dict.fromkeys(queries))}
        if not numbers:
            return []
        results = self._searcher.batch_search(list(numbers), list(numbers.values()), k=k, threads=self._threads)
        hits = {number: [Hit(str(hit.docid), float(hit.score)) for hit in of] for number, of in results.items()}
        return [list(hits.get(numbers[query], ())) for query in queries]

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> NDArray[np.float32]:
        """Lucene's BM25 of every query with every passage of a pool, fp32 [Q, P]: one call of Java a pair.

        Raises:
            DataError: an id is not in the index.
        """
        columns = {id: column for column, id in enumerate(dict.fromkeys(ids))}
        rows = {query: row for row, query in enumerate(dict.fromkeys(queries))}
        self._require(list(columns))
        similarity = self._searcher.get_similarity()
        scores = np.zeros((len(rows), len(columns)), dtype=np.float32)
        for query, row in rows.items():
            for id, column in columns.items():
                if id not in self._blank:
                    scores[row, column] = self._reader.compute_query_document_score(id, query, similarity=similarity)
        picked = np.ix_([rows[query] for query in queries], [columns[id] for id in ids])
        return scores[picked].reshape(len(queries), len(ids))

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Ids that are not in the index (see `Retriever`); those that were seen are not looked up again."""
        unknown = [id for id in dict.fromkeys(ids) if id not in self._known]
        missing = [id for id in unknown if self._reader.doc(id) is None]
        self._known.update(set(unknown).difference(missing))
        return missing

    def _require(self, ids: Sequence[str]) -> None:
        if missing := self.missing(ids):
            raise DataError(f"no passage with the id {missing[0]!r} ({len(missing)} missing)")


def _write_collection(corpus: Corpus, directory: Path, passages: int, progress: bool) -> list[str]:
    """Write a corpus as Pyserini's indexer reads it; gives the ids of the passages without text."""
    blank: list[str] = []
    with atomic_directory(directory) as temporary:
        with open(temporary / "passages.jsonl", "w", encoding="utf-8") as stream:
            for passage in tracked(corpus, "writing", passages, "passages", progress):
                if not passage.contents.strip():
                    blank.append(passage.id)
                stream.write(json.dumps({"id": passage.id, "contents": passage.contents}) + "\n")
    return blank


def _index(collection: Path, index: Path, threads: int) -> None:
    """Run Pyserini's indexer in a process of its own, as its documentation does."""
    options = {
        "--collection": "JsonCollection",
        "--input": str(collection),
        "--index": str(index),
        "--generator": "DefaultLuceneDocumentGenerator",
        "--threads": str(threads),
    }
    command = [sys.executable, "-m", "pyserini.index.lucene", *(word for option in options.items() for word in option)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=os.environ.copy())
    if done.returncode or not any(index.glob("segments*")):
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise PyseriniError("Pyserini's indexer failed: " + " / ".join(lines[-_TOLD:]))


@dataclass(frozen=True)
class _Pyserini:
    """The classes of Pyserini that are used."""

    searcher: Any
    reader: Any


def _pyserini() -> _Pyserini:
    """Pyserini's classes; the first import starts Java in this process.

    Raises:
        ConfigError: Pyserini or Java is missing.
    """
    try:
        from pyserini.index.lucene import LuceneIndexReader
        from pyserini.search.lucene import LuceneSearcher
    except ModuleNotFoundError as error:
        raise ConfigError(f"this retriever needs Pyserini ({error}): pip install pyserini, and Java 21") from None
    except Exception as error:  # pyjnius has a different one for each way in which Java can be missing or too old
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(f"Pyserini finds no Java that it can use ({reason}): set JAVA_HOME to Java 21") from None
    return _Pyserini(LuceneSearcher, LuceneIndexReader)
