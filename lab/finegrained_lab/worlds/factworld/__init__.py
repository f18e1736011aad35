"""People who annotate FactWorld, simulated: they err at known rates."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"SimulateAnnotators": "simulate"})
