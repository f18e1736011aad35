"""Floor 7: FactWorld: questions on passages, answers with planted errors, and the oracle that finds them."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AnnotateFactWorld": "annotate",
        "FactWorldOracle": "oracle",
        "FactWorldReport": "report",
        "GoldConfig": "writer",
        "MakeFactWorld": "make",
        "WorldConfig": "world",
        "WriterConfig": "writer",
    },
)
