"""DIALKI (thesis chapter 3): the knowledge an answer rests on, as a passage of a document and a run of its spans.

Reads dialogues, trains and evaluates the model, answers with it, and prepares and generates responses from what it
finds (`responses`). Does not know how a generator is trained or rewarded.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DialkiBatchConfig": "training.job",
        "DialkiConfig": "model.config",
        "EvaluateDialki": "jobs",
        "GenerateResponses": "jobs",
        "IdentifyKnowledge": "jobs",
        "InputConfig": "inputs.examples",
        "LossConfig": "model.config",
        "MakeResponseData": "responses",
        "NoiseConfig": "model.config",
        "SearchConfig": "model.search",
        "TrainDialki": "training.job",
    },
)
