"""INSCIT: information seeking with mixed initiative, answers that rest on passages (chapter 5 of the thesis)."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Assistant": "assistant",
        "AssistantSettings": "assistant",
        "EvaluateInscit": "evaluation.evaluate",
        "EvaluateResponseTypes": "types",
        "EvidenceIdentifier": "identifier.identifier",
        "IdentifyEvidence": "identifier.identify",
        "InspectInscit": "data.inspection",
        "MakeDprData": "search",
        "MakeIdentifierData": "identifier.data",
        "MakeReaderInputs": "reader.inputs",
        "MakeResponseTypes": "types",
        "ReadReaderOutputs": "reader.outputs",
        "RetrieveEvidence": "search",
    },
)
