"""PPO on dense token rewards."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CompatConfig": "config",
        "EntropyConfig": "config",
        "GAE": "advantages",
        "GroupAdvantages": "advantages",
        "KLConfig": "config",
        "PPOConfig": "config",
        "TrainPPO": "job",
    },
)
