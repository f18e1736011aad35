"""Does a stress score predict what a policy that is chosen or trained by a reward will do wrong?"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AnnotateWithFault": "faults",
        "FactWorldGrid": "factworld",
        "FactWorldPredictions": "factworld",
        "MeasureRewards": "measure",
        "ToneWorldGrid": "tone",
        "ToneWorldPredictions": "tone",
        "TrainInUnits": "policies",
    },
)
