"""Published questions in dialogues: QReCC, CANARD, TopiOCQA, TREC CAsT and iKAT, and the SCAI-QReCC shared task."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"EvaluateScai": "scai"})
