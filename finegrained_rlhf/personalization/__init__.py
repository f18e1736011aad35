"""Floor 7: learning from users at use time, without training: what their edits say they prefer."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BertScore": "prelude.similarity",
        "Cipher": "learners.cipher",
        "Continual": "learners.without_context",
        "CotEdit": "learners.in_context",
        "Draft": "learners.base",
        "EditsToFeedback": "span_feedback.convert",
        "ExploreThenExploit": "learners.without_context",
        "FaissIndex": "retrieval.index",
        "HashedWords": "retrieval.encoders",
        "IclEdit": "learners.in_context",
        "MakePreludeContexts": "prelude.documents",
        "MemoryLimits": "store.records",
        "ModelContexts": "retrieval.encoders",
        "ModelEditor": "prelude.users",
        "ModelUser": "pahf.users",
        "NoLearning": "learners.without_context",
        "Oracle": "learners.without_context",
        "Pahf": "learners.pahf",
        "PostgresMemory": "store.postgres",
        "RunPahf": "pahf.run",
        "RunPrelude": "prelude.run",
        "ScriptedUser": "pahf.users",
        "ShoppingUser": "pahf.shopping",
        "ShowUserMemory": "page.show",
        "UserMemory": "store.memory",
    },
)
