"""What every training on given examples does alike; a trainer gives its loss and its sums."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BatchConfig": "job",
    },
)
