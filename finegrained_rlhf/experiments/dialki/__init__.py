"""What DialogueWorld and DSTC11 show of chapter 3."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DialogueWorldTable": "dialogue_world",
        "Dstc11Table": "dstc11",
        "MinilmDstc11Table": "dstc11",
        "ResponseTable": "responses",
    },
)
