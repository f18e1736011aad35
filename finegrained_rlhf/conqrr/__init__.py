"""CONQRR, query rewriting in dialogues: data, weak labels, retrieval reward, training, evaluation (thesis, ch. 4)."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BestOfRank": "rewriting",
        "CompareSystems": "measures",
        "EndpointWriter": "few_shot",
        "EvaluateRewrites": "evaluation",
        "FewShotConfig": "few_shot",
        "GuardedReward": "rewards",
        "LabelConfig": "labels",
        "LabelPassages": "labels",
        "MakeQuestionDprData": "dpr_data",
        "PassageRank": "rewards",
        "PolicyWriter": "few_shot",
        "RetrievedRank": "rewards",
        "Rewrite": "rewriting",
        "RewriteData": "data",
        "RewriteFewShot": "few_shot",
        "RewritingConfig": "rewriting",
        "TrainConqrr": "training",
    },
)
