"""Floor 7: learning from users at use time, without training: what their edits say they prefer."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "MemoryLimits": "store.records",
        "UserMemory": "store.memory",
    },
)
