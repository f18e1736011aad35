"""Data sets that others published, read as the library's records, and what scores of them need."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"InspectInscit": "inscit"})
