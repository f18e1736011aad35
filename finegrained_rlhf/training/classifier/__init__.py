"""Training a classifier of texts."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "TrainClassifier": "job",
    },
)
