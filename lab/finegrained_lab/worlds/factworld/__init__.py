"""FactWorld for experiments: annotators who err at known rates, changes to answers whose effect the oracle knows."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"SimulateAnnotators": "simulate", "WorldChange": "changes"})
