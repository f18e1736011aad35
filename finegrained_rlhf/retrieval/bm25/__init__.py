"""BM25 over words and over sub-words, in shards with global statistics."""
