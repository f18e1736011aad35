"""DialogueWorld: dialogues whose answers rest on one span of one passage."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DialogueWorldConfig": "dialogues",
        "MakeDialogueWorld": "make",
    },
)
