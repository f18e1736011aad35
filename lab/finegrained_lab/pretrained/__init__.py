"""Pretrained models that packages of the Python package index carry, as ordinary model directories."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"PrepareModels": "prepare"})
