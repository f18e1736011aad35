"""Floor 3: from segment scores to token rewards. Knows no rollout engine, algorithm or reward model."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BaseScorer": "protocol",
        "ClassifierScorer": "texts",
        "ComponentConfig": "config",
        "FunctionScorer": "texts",
        "OverlongPenalty": "penalties",
        "Judge": "judge",
        "JudgeScorer": "judged",
        "PerspectiveScorer": "remote",
        "PrefixDifferenceScorer": "texts",
        "RecordedScorer": "remote",
        "RemoteTextScorer": "remote",
        "RewardComposer": "composition",
        "RewardConfig": "config",
        "RewardConstraint": "moving",
        "RewardGate": "moving",
        "Scorer": "protocol",
        "ServedScorer": "served",
        "StartableScorer": "protocol",
        "TextScorer": "texts",
        "VersionedScorer": "protocol",
        "WeightSchedule": "moving",
        "WholeTextScorer": "texts",
    },
)
