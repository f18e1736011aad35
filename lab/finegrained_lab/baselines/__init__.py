"""Baselines of papers: BERTQA (Devlin et al., 2019), which finds an answer in windows of a document by two tokens."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"BertQaConfig": "config", "WindowConfig": "config"})
