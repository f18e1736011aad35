"""Floor 2: policies, value models, log-probabilities, adapters and tiny models. Knows no reward and no algorithm."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "LoraConfig": "config",
        "PolicyConfig": "config",
        "ValueConfig": "config",
    },
)
