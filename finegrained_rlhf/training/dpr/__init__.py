"""Training the two towers of dense passage retrieval."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DprSampling": "job",
        "TrainDPR": "job",
    },
)
