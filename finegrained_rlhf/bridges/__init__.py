"""Floor 5: our aligned rewards by token and component, for other trainers. Imports none of them."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DenseReward": "arrays",
        "TokenRewards": "arrays",
        "VerlRewardManager": "trainers",
        "trl_reward_function": "trainers",
        "trl_reward_functions": "trainers",
        "verl_compute_score": "trainers",
    },
)
