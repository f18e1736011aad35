"""FactWorld: questions on passages, answers with planted errors, and the oracle that finds them."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AnnotateFactWorld": "annotate",
        "FactWorldOracle": "monitor",
        "GoldConfig": "writer",
        "MakeFactWorld": "make",
        "SimulateAnnotators": "annotators.simulate",
        "WorldConfig": "world",
        "WriterConfig": "writer",
    },
)
