"""Attacking a reward before anything is trained against it: changes to answers whose effect is known.

See docs/stress_test.md.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BuiltIn": "makers",
        "Change": "changes",
        "Expectation": "changes",
        "MakesChanges": "changes",
        "StressRecord": "changes",
    },
)
