"""Experiments on QA-FEEDBACK, human feedback on real questions."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BottleneckTable": "bottleneck",
        "RunBottleneckFolds": "bottleneck",
        "SplitFeedback": "split",
        "MakeIntermediateFeedback": "intermediate",
        "CorrectionsToFeedback": "edit_mass",
        "EditMassTable": "edit_mass",
        "CountedGate": "gate",
        "DemoRealTable": "distilled.demo",
        "ExpertIterationTable": "distilled.expert",
        "WriteTrivialAnswers": "gate",
        "JudgeFolds": "folds",
        "RealCreditTable": "distilled.credit",
        "MeasuresTable": "measures",
        "RealPolicyTable": "policies",
        "RewardModelsTable": "reward_models",
        "SplitQuestions": "questions",
        "TeachBest": "distilled.pool",
    },
)
