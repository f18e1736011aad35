"""CONQRR, query rewriting in dialogues: data, weak labels, retrieval reward, training, evaluation (thesis, ch. 4)."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BestOfRank": "rewriting",
        "CompareSystems": "measures",
        "EvaluateRewrites": "evaluation",
        "GuardedReward": "rewards",
        "LabelConfig": "labels",
        "LabelPassages": "labels",
        "MakeQuestionDprData": "dpr_data",
        "PassageRank": "rewards",
        "RetrievedRank": "rewards",
        "Rewrite": "rewriting",
        "RewriteData": "data",
        "RewritingConfig": "rewriting",
        "TrainConqrr": "training",
    },
)
