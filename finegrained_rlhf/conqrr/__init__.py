"""CONQRR, query rewriting in dialogues: data, weak labels, retrieval reward, training, evaluation (thesis, ch. 4)."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BestOfRank": "rewriting.best_of",
        "CompareSystems": "evaluation.questions",
        "EndpointWriter": "few_shot.writers",
        "EvaluateRewrites": "evaluation.evaluate",
        "FewShotConfig": "few_shot.prompting",
        "GuardedReward": "rewards.guard",
        "LabelConfig": "labels.choose",
        "LabelPassages": "labels.files",
        "MakeQuestionDprData": "labels.dpr_data",
        "PassageRank": "rewards.passages",
        "PolicyWriter": "few_shot.writers",
        "RetrievedRank": "rewards.passages",
        "Rewrite": "rewriting.job",
        "RewriteData": "data",
        "RewriteFewShot": "few_shot.job",
        "RewritingConfig": "rewriting.config",
        "TrainConqrr": "training.job",
    },
)
