"""How well `finegrained ask` answers from generated folders, and the weights that it is shipped with."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AnswerFolders": "answers",
        "AskTable": "table",
        "CanardAskTable": "canard",
        "Dstc11AskTable": "dstc11",
        "FitEvidence": "fit",
        "Folders": "folders",
        "System": "folders",
    },
)
