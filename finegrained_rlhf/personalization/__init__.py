"""Floor 6: learning from users at use time, without training: what their edits and remarks say they want."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CatchUp": "catch_up",
        "ChainOfThought": "learners.conversation",
        "Cipher": "learners.prelude",
        "Continual": "learners.prelude",
        "Coreset": "learners.coreset",
        "CotEdit": "learners.prelude",
        "Draft": "learners.base",
        "EditsToFeedback": "span_feedback",
        "EmbeddedConflicts": "selection",
        "ExactConflicts": "selection",
        "ExploreThenExploit": "learners.prelude",
        "FaissIndex": "retrieval",
        "FeedbackRemark": "selection",
        "FullMemory": "learners.conversation",
        "HashedWords": "retrieval",
        "IclEdit": "learners.prelude",
        "InContext": "learners.conversation",
        "MemoryLimits": "store.protocol",
        "ModelConflicts": "selection",
        "ModelContexts": "retrieval",
        "NoLearning": "learners.prelude",
        "Oracle": "learners.prelude",
        "Pahf": "learners.pahf",
        "PostgresMemory": "store.postgres",
        "Scratchpad": "learners.conversation",
        "ShowUserMemory": "page",
        "SourceDocument": "selection",
        "SummarisedMemory": "learners.conversation",
        "UserMemory": "store.memory",
    },
)
