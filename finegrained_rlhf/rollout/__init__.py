"""Floor 3: prompts → Rollout. Knows no reward and no algorithm."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "GenerateEngine": "generate",
        "RolloutConfig": "engine",
        "RolloutEngine": "engine",
        "make_engine": "select",
    },
)
