"""Data sets that others published, read as the library's records, and what scores of them need."""
