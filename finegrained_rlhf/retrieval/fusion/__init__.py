"""Several runs made into one. Knows ranks; no retriever and no judgement."""
