"""Corpora, BM25 and dense indexes behind one protocol, ranking metrics. Knows no dialogue and no policy."""
