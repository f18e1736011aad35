"""Floor 5: what other reward weights would have changed, from kept rollouts."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "RewardChange": "job",
        "Reweigh": "job",
    },
)
