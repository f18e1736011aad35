"""What DialogueWorld and DSTC11 show of chapter 3, and its tables from Doc2Dial and Wizard of Wikipedia."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DialogueWorldTable": "dialogue_world",
        "Doc2DialTable": "thesis_tables",
        "Dstc11Table": "dstc11",
        "Dstc11TrackTable": "track",
        "MinilmDstc11Table": "dstc11",
        "ResponseTable": "responses",
        "TrainSnippetEncoder": "snippet_encoders",
        "WowTable": "thesis_tables",
    },
)
