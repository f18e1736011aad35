"""BM25 on an OpenSearch or Elasticsearch server, for corpora that outgrow one machine.

A passage is a document with a keyword field `id` and a text field `contents` (title and text), scored by BM25 with the
given k1 and b. Searches use the statistics of the whole index (`dfs_query_then_fetch`), so that the number of the
server's shards changes no score. A pool is scored by the same query with a filter on ids, which changes no score
either; a passage without any word of the query has score 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.retrieval.corpus import Corpus, CorpusScan
from finegrained_rlhf.retrieval.engines.opensearch_index import ServerIndex, fill, forget_progress
from finegrained_rlhf.retrieval.engines.search_server import (
    SearchServer,
    SearchServerConfig,
    SearchServerError,
    reason_of,
    speakable,
)
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.record import IndexRecord, begin_index, known_scan, open_record
from finegrained_rlhf.retrieval.runs import in_trec_order
from finegrained_rlhf.runtime.remote.answers import BUSY

_KIND = "opensearch"
_MOST_HITS = 10_000  # of one search, the server's default limit
_MOST_IDS = 5_000  # of one filter


@dataclass(frozen=True)
class OpenSearchConfig(Settings):
    """An index on a search server. The index directory holds only what it is of.

    Attributes:
        name: of the server's index.
        server: where it is; may be given as a mapping.
        k1: saturation of the counts.
        b: strength of the length normalisation.
        analyzer: of the server: `english` stems and drops stop words, `standard` does neither.
        shards: of the server's index.
        replicas: further copies of each shard.
        bulk: passages a request while indexing; what a killed build sends twice at most.
        queries_per_request: searches that are sent together.
        progress: show bars while indexing.
    """

    name: str
    server: SearchServerConfig = field(default_factory=SearchServerConfig)
    k1: Annotated[float, at_least(0)] = 0.82
    b: Annotated[float, at_least(0), at_most(1)] = 0.68
    analyzer: str = "english"
    shards: Annotated[int, at_least(1)] = 1
    replicas: Annotated[int, at_least(0)] = 0
    bulk: Annotated[int, at_least(1)] = 1000
    queries_per_request: Annotated[int, at_least(1)] = 64
    progress: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.server, Mapping):  # as a record of an index keeps it
            object.__setattr__(self, "server", SearchServerConfig(**self.server))
        if not self.name or self.name != self.name.lower() or self.name[0] in "_-+":
            raise ConfigError(f"name: expected lower case, not beginning with _, - or +, got {self.name!r}")

    def build(self, corpus: str, directory: Path) -> None:
        """Send a corpus to the server; goes on where it was stopped, and begins anew where the index was deleted.

        Raises:
            DataError: a broken or empty corpus, or a passage that the server refuses.
            ConfigError: directory or server hold an index of another corpus or with other settings; or the server
                refuses the user.
            SearchServerError: the server cannot be reached or stays busy.
        """
        texts = Corpus(corpus)
        scan = texts.scan(known_scan(directory), self.progress)
        record = IndexRecord(_KIND, self._settings, scan, config=asdict(self))
        unfinished = begin_index(directory, record)
        index = self._index(scan)
        if index.create(self._of_server, self._fields):
            forget_progress(directory)
        elif not unfinished and index.count() == scan.passages:
            return
        record.write(directory)
        fill(index, texts, directory, passages=scan.passages, bulk=self.bulk, progress=self.progress)
        replace(record, statistics={"passages": scan.passages}, finished=True).write(directory)

    def open(self, directory: Path) -> OpenSearchRetriever:
        """The retriever over an index that was built with these settings.

        Raises:
            DataError: there is no index, here or on the server, or it is not finished or incomplete.
            ConfigError: it was built with other settings.
            SearchServerError: the server cannot be reached or stays busy.
        """
        record = open_record(directory, _KIND, self._settings)
        index = self._index(record.corpus)
        index.check()
        if (there := index.count()) != record.corpus.passages:
            raise DataError(
                f"the server has {there} of {record.corpus.passages} passages; finegrained build-index sends the rest",
                file=directory,
            )
        return OpenSearchRetriever(SearchServer(self.server), self.name, self.queries_per_request)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"name": self.name, "k1": self.k1, "b": self.b, "analyzer": self.analyzer}

    @property
    def _of_server(self) -> dict[str, Any]:
        """The settings of the server's index; documents are published when all are sent."""
        return {
            "number_of_shards": self.shards,
            "number_of_replicas": self.replicas,
            "refresh_interval": "-1",
            "similarity": {"passages": {"type": "BM25", "k1": self.k1, "b": self.b}},
        }

    @property
    def _fields(self) -> dict[str, Any]:
        contents = {"type": "text", "analyzer": self.analyzer, "similarity": "passages"}
        return {"id": {"type": "keyword"}, "contents": contents}

    def _index(self, scan: CorpusScan) -> ServerIndex:
        meta = {"made_by": "finegrained_rlhf", **self._settings, "corpus": scan.fingerprint}
        return ServerIndex(SearchServer(self.server), self.name, meta)


class OpenSearchRetriever:
    """Scores and searches on a server; a retriever as in `protocol`.

    Args:
        server: that has the index.
        name: of the index.
        queries_per_request: searches that are sent together.
    """

    def __init__(self, server: SearchServer, name: str, queries_per_request: int = 64) -> None:
        self._server, self._name, self._queries_per_request = server, name, queries_per_request
        self._known: set[str] = set()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The k best passages of each query.

        Raises:
            ConfigError: k is not 1 to 10,000.
            SearchServerError: the server fails.
        """
        if not 1 <= k <= _MOST_HITS:
            raise ConfigError(f"k: expected 1 to {_MOST_HITS} hits a query, which a server gives, got {k}")
        different = list(dict.fromkeys(queries))
        results = dict(zip(different, self._searches([_search(query, k) for query in different]), strict=True))
        return [list(results[query]) for query in queries]

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> NDArray[np.float32]:
        """BM25 of every query with every passage of a pool, fp32 [Q, P]; 0 without a word in common.

        Raises:
            DataError: an id is not in the index.
            SearchServerError: the server fails.
        """
        columns = {id: column for column, id in enumerate(dict.fromkeys(ids))}
        rows = {query: row for row, query in enumerate(dict.fromkeys(queries))}
        self._require(list(columns))
        scores = np.zeros((len(rows), len(columns)), dtype=np.float32)
        pools = _parts(list(columns), _MOST_IDS)
        pairs = [(query, pool) for query in rows for pool in pools]
        answers = self._searches([_search(query, len(pool), pool) for query, pool in pairs])
        for (query, _), hits in zip(pairs, answers, strict=True):
            for hit in hits:
                scores[rows[query], columns[hit.id]] = hit.score
        picked = np.ix_([rows[query] for query in queries], [columns[id] for id in ids])
        return scores[picked].reshape(len(queries), len(ids))

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Ids that are not in the index (see `Retriever`); those that were seen are not asked for again.

        Raises:
            SearchServerError: the server fails.
        """
        unknown = [id for id in dict.fromkeys(ids) if id not in self._known]
        for hits in self._searches([_search(None, len(part), part) for part in _parts(unknown, _MOST_IDS)]):
            self._known.update(hit.id for hit in hits)
        return [id for id in unknown if id not in self._known]

    def _require(self, ids: Sequence[str]) -> None:
        if missing := self.missing(ids):
            raise DataError(f"no passage with the id {missing[0]!r} ({len(missing)} missing)")

    def _searches(self, bodies: Sequence[Mapping[str, Any]]) -> list[list[Hit]]:
        """The hits of searches in trec_eval's order; a search that fails for lack of time or room is sent again."""
        results: list[list[Hit]] = []
        for part in _parts(list(bodies), self._queries_per_request):
            answers: dict[int, list[Hit]] = {}
            patience = self._server.patience(f"{self._name}/_msearch")
            while len(answers) < len(part):
                waiting = [i for i in range(len(part)) if i not in answers]
                header = {"search_type": "dfs_query_then_fetch"}
                lines = [line for i in waiting for line in (header, part[i])]
                answer = self._server.ask("POST", f"{self._name}/_msearch", lines)
                taken, reason = self._take(waiting, answer)
                answers |= taken
                if taken:
                    patience.restore()
                if len(answers) < len(part):
                    patience.wait(f"{len(waiting) - len(taken)} of {len(waiting)} searches failed ({reason})")
            results += [answers[i] for i in range(len(part))]
        return results

    def _take(self, sent: Sequence[int], answer: Mapping[str, Any]) -> tuple[dict[int, list[Hit]], str]:
        """The hits of the searches that succeeded, and why another one has to be sent again."""
        responses = answer.get("responses")
        if not isinstance(responses, list) or len(responses) != len(sent):
            return {}, "an answer without a response for each of them"
        taken, reason = dict[int, list[Hit]](), ""
        for i, response in zip(sent, responses, strict=True):
            try:
                if "error" in response:
                    if response.get("status") not in BUSY:
                        raise SearchServerError(f"{self._server.address(self._name)}: {reason_of(response)}")
                    reason = reason_of(response)
                elif response["timed_out"] or response["_shards"]["failed"]:
                    reason = "an incomplete answer"
                else:
                    hits = [Hit(str(hit["fields"]["id"][0]), float(hit["_score"])) for hit in response["hits"]["hits"]]
                    taken[i] = in_trec_order(hits)
            except (AttributeError, KeyError, IndexError, TypeError, ValueError):
                reason = "an answer of another form than a search server's"
        return taken, reason


def _search(query: str | None, size: int, ids: Sequence[str] | None = None) -> dict[str, Any]:
    """A search for a text, among all passages or some; without a text for the passages themselves."""
    wanted: dict[str, Any] = {}
    if query is not None:
        wanted["must"] = {"match": {"contents": {"query": speakable(query)}}}
    if ids is not None:
        wanted["filter"] = {"terms": {"id": [speakable(id) for id in ids]}}
    return {
        "query": {"bool": wanted},
        "size": size,
        "_source": False,
        "docvalue_fields": ["id"],
        "sort": [{"_score": "desc"}, {"id": "desc"}],
        "track_scores": True,
        "track_total_hits": False,
    }


def _parts(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
