"""Floor 3: prompts → Rollout. Knows no reward and no algorithm."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Environment": "environment",
        "ScriptedReplies": "environment",
        "DExperts": "mixers.dexperts",
        "GeDi": "mixers.gedi",
        "GenerateEngine": "generate",
        "LogitsMixer": "mixers.protocol",
        "RolloutConfig": "config",
        "RolloutEngine": "engine",
        "VLLMConfig": "vllm.config",
        "WordList": "mixers.word_list",
        "make_engine": "select",
    },
)
