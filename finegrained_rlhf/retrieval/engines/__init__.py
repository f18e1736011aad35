"""Search engines outside this process: OpenSearch, Lucene through Pyserini."""
