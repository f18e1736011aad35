"""Floor 3: from segment scores to token rewards. Knows no rollout engine, algorithm or reward model."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BaseScorer": "protocol",
        "ClassifierScorer": "texts.classifier",
        "ComponentConfig": "config",
        "OverlongPenalty": "penalties",
        "Judge": "remote.judge",
        "JudgeScorer": "remote.judged",
        "PerspectiveScorer": "remote.perspective",
        "PrefixDifferenceScorer": "texts.prefixes",
        "RecordedScorer": "remote.scorer",
        "RemoteTextScorer": "remote.scorer",
        "RewardComposer": "composition",
        "RewardConfig": "config",
        "RewardConstraint": "moving",
        "RewardGate": "moving",
        "Scorer": "protocol",
        "StartableScorer": "protocol",
        "TextScorer": "texts.protocol",
        "WeightSchedule": "moving",
        "WholeTextScorer": "texts.prefixes",
    },
)
