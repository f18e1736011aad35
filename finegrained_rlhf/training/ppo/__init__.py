"""PPO on dense token rewards."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CompatConfig": "config",
        "GAE": "advantages.gae",
        "GroupAdvantages": "advantages.group",
        "KLConfig": "config",
        "PPOConfig": "config",
        "TrainPPO": "job",
    },
)
