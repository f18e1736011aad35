"""INSCIT (Wu et al., 2023): its files, what is made of them for retrievers, DIALKI and readers, and its scores."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "EvaluateInscit": "evaluation",
        "EvaluateResponseTypes": "types",
        "IdentifyEvidence": "identification",
        "InspectInscit": "inspection",
        "MakeCorpus": "pages",
        "MakeDprData": "search",
        "MakeIdentifierData": "candidates",
        "MakeReaderInputs": "reader",
        "MakeResponseTypes": "types",
        "ReadReaderOutputs": "reader",
        "RetrieveEvidence": "search",
    },
)
