"""Bidirectional encoders: how one is opened, what is made of one, and tokens that mark parts of its input."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"ConvertDPR": "jobs", "MakeLongformer": "jobs"})
