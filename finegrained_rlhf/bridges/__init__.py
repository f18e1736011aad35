"""Floor 5: our aligned rewards by token and component, and advantages made of them, for other trainers.

`trl`, `verl` and `skyrl` below import the engine of their name; everything else imports none.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DenseAdvantages": "advantages",
        "DenseReward": "arrays",
        "TokenRewards": "arrays",
        "VerlRewardManager": "trainers",
        "trl_reward_function": "trainers",
        "trl_reward_functions": "trainers",
        "verl_compute_score": "trainers",
    },
)
