"""Floor 4: load a policy, generate, best of n, measure and evaluate. Knows no training."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AttackJudge": "attack",
        "DecodingConfig": "config",
        "Evaluate": "jobs",
        "Generate": "jobs",
        "LocalGenerator": "generator",
        "SampleOutputs": "jobs",
        "load_policy": "generator",
    },
)
