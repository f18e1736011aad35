"""PahfWorld: users with rules about drinks, snacks and places, scenes with options, and a scripted language model."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "ChoiceScript": "chooser",
        "MakePahfWorld": "make",
    },
)
