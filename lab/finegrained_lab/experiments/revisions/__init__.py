"""How far what a reward model says of a segment is changed by the text behind it."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CountsScorer": "counts",
        "MeasureRevisions": "measure",
        "PrefixModelsTable": "prefix_models",
        "RevisionsTable": "table",
    },
)
