"""Corpora, BM25 and dense indexes behind one protocol, ranking metrics. Knows no dialogue and no policy."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Bm25Config": "bm25.retriever",
        "Bm25LightConfig": "bm25.retriever",
        "BuildIndex": "jobs",
        "BuildStore": "passages",
        "Corpus": "corpus",
        "DenseConfig": "dense.retriever",
        "EncoderConfig": "dense.config",
        "FuseRuns": "fusion",
        "IvfPqConfig": "dense.nearest",
        "OpenSearchConfig": "engines.opensearch",
        "PassageStore": "passages",
        "RankingMetrics": "ranking",
        "RecordedConfig": "record",
        "Search": "jobs",
        "SearchServerConfig": "engines.search_server",
    },
)
