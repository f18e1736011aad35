"""ToneWorld: texts in which some sentences are toxic, with the true toxicity and the true fluency of any text."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AnnotateToneWorld": "annotators",
        "MakeToneWorld": "make",
        "ToneChange": "changes",
        "ToneMonitor": "measure",
        "ToneToxicity": "measure",
        "ToneWorldConfig": "texts",
    },
)
