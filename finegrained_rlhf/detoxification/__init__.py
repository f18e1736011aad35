"""Detoxification (thesis, section 6.3): prompts that a language model continues, and how toxic what it writes is.

The rewards are `rewards.texts`'s, the training is `training.ppo`'s.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "EvaluateDetox": "job",
        "InspectPrompts": "prompts",
    },
)
