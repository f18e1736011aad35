"""Self-critical training: reward of a sample minus reward of the greedy response."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "SelfCriticalConfig": "config",
        "SelfCriticalKL": "config",
    },
)
