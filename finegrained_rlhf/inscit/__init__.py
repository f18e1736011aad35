"""Answering conversations from documents (chapter 5 of the thesis): an assistant and its identifier of passages.

The same for a folder of documents of anybody's is `asking`.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AskSettings": "asking.job",
        "Ask": "asking.job",
        "Assistant": "assistant",
        "AssistantSettings": "assistant",
        "EvidenceIdentifier": "identifier",
    },
)
