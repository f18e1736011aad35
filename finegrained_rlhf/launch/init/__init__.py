"""The way in: from a file of data to a project that runs, and a try of it on ten records."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"Init": "jobs", "Try": "jobs"})
