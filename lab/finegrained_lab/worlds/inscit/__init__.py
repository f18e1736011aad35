"""InscitWorld: articles, conversations that seek what is in them, and the truth about any answer."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AnnotatorHabits": "annotators",
        "ArticleConfig": "articles",
        "AskedFacts": "answers.rewards",
        "ConversationConfig": "conversations",
        "GroundedSentences": "answers.rewards",
        "InscitOracle": "oracle",
        "InscitWorldMonitor": "answers.rewards",
        "JudgePredictions": "answers.judge",
        "MakeInscitWorld": "make",
        "UsedEvidence": "answers.rewards",
    },
)
