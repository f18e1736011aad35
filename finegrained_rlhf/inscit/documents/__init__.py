"""A folder of documents as a corpus: read, cut into passages with their place in the source, kept, searched."""
