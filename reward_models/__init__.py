"""Reward models that learn from span feedback: labels, inputs, training and scoring. Knows no policy and no PPO."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BottleneckConfig": "config",
        "BottleneckScorer": "bottleneck_scorer",
        "CompletenessConfig": "pairs",
        "DisagreeSelection": "selection.strategies",
        "DiverseSelection": "selection.strategies",
        "DriftSelection": "selection.strategies",
        "EditMassScorer": "scorers",
        "EvaluateJudge": "trust.job",
        "EvaluateRewardModel": "trust.job",
        "InputConfig": "config",
        "InspectFeedback": "data.inspection",
        "MakeTinyRewardModels": "job",
        "LayerConfig": "config",
        "RewardModelConfig": "config",
        "SegmentScorer": "scorers",
        "SequenceScorer": "scorers",
        "SuggestByModels": "selection.suggest",
        "TrainRewardModel": "job",
        "UncertainSelection": "selection.strategies",
    },
)
