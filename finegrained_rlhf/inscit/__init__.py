"""Answering conversations from documents: an assistant, and its identifier of passages (chapter 5 of the thesis)."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {"Assistant": "assistant", "AssistantSettings": "assistant", "EvidenceIdentifier": "identifier"},
)
