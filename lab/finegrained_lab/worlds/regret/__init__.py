"""A world in which the regret of PAHF's statements can be computed: ambiguous rounds, drift, policies."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"MeasureRegret": "measure"})
