"""Feedback records, their taxonomies and files, and files of outputs."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"Taxonomy": "taxonomy"})
