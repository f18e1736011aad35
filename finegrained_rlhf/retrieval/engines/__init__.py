"""Search engines outside this process: OpenSearch and Elasticsearch."""
