"""BiosWorld: people of one name with five facts each, users who mean one of them, and a scripted language model."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BioScript": "script",
        "MakeBiosWorld": "make",
    },
)
