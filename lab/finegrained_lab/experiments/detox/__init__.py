"""The tables of detoxification."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "WriteScoredTexts": "scored",
        "WriteLabelWords": "words",
        "SplitPrompts": "splits",
        "SplitByLabel": "scored",
        "RealPromptsTable": "smollm2",
        "ToneWorldTable": "tone_world",
        "ToneGrid": "half_time",
        "HalfTimeTable": "half_time",
    },
)
