"""Training a class-conditional language model, as GeDi needs it to steer another one."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "TrainGeDi": "job",
    },
)
