"""What InscitWorld shows of chapter 5."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "InscitListsTable": "world",
        "InscitPPOTable": "ppo",
        "InscitTable": "world",
        "InscitWorldTable": "world",
        "RepeatLastTurn": "repeat",
        "ShuffleEvidence": "shuffle",
    },
)
