"""CONQRR, query rewriting in dialogues: data, weak labels, retrieval reward, training, evaluation (thesis, ch. 4)."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BestOfRank": "rewriting.best_of",
        "CompareSystems": "evaluation.questions",
        "EvaluateRewrites": "evaluation.evaluate",
        "EvaluateScai": "evaluation.scai_job",
        "GuardedReward": "rewards.guard",
        "LabelConfig": "labels.choose",
        "LabelPassages": "labels.files",
        "PassageRank": "rewards.passages",
        "RetrievedRank": "rewards.passages",
        "Rewrite": "rewriting.rewrite",
        "RewriteData": "readers.reading",
        "RewritingConfig": "rewriting.rewriter",
        "TrainConqrr": "training.train",
        "WriteCanardCorpus": "readers.canard_corpus",
    },
)
