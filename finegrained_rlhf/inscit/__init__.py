"""INSCIT: information seeking with mixed initiative, answers that rest on passages (chapter 5 of the thesis)."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Assistant": "assistant",
        "AssistantSettings": "assistant",
        "EvaluateInscit": "evaluation",
        "EvaluateResponseTypes": "types",
        "EvidenceIdentifier": "identification",
        "IdentifyEvidence": "identification",
        "MakeDprData": "search",
        "MakeIdentifierData": "candidates",
        "MakeReaderInputs": "reader",
        "MakeResponseTypes": "types",
        "ReadReaderOutputs": "reader",
        "RetrieveEvidence": "search",
    },
)
