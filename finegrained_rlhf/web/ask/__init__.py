"""Ask: a question to a folder of documents, what was looked at, the answer with its places; marks become feedback."""
