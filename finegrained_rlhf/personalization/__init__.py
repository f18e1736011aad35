"""Floor 6: learning from users at use time, without training: what their edits and remarks say they want."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "CatchUp": "catch_up",
        "ChainOfThought": "learners.conversation",
        "Cipher": "learners.cipher",
        "Continual": "learners.without_context",
        "Coreset": "learners.coreset",
        "CotEdit": "learners.in_context",
        "Draft": "learners.base",
        "EditsToFeedback": "span_feedback",
        "EmbeddedConflicts": "selection",
        "ExactConflicts": "selection",
        "ExploreThenExploit": "learners.without_context",
        "FaissIndex": "retrieval.index",
        "FeedbackRemark": "selection",
        "FullMemory": "learners.conversation",
        "HashedWords": "retrieval.encoders",
        "IclEdit": "learners.in_context",
        "InContext": "learners.conversation",
        "MemoryLimits": "store.records",
        "ModelConflicts": "selection",
        "ModelContexts": "retrieval.encoders",
        "NoLearning": "learners.without_context",
        "Oracle": "learners.without_context",
        "Pahf": "learners.pahf",
        "PostgresMemory": "store.postgres",
        "Scratchpad": "learners.conversation",
        "ShowUserMemory": "page",
        "SourceDocument": "selection",
        "SummarisedMemory": "learners.conversation",
        "UserMemory": "store.memory",
    },
)
