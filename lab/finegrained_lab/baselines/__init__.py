"""Baselines of papers: BERTQA (Devlin et al., 2019), which finds an answer in windows of a document by two tokens;
rewrites by a language model with demonstrations; BM25 by Pyserini, the retriever of published numbers.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BertQaConfig": "config",
        "EndpointWriter": "few_shot",
        "FewShotConfig": "few_shot",
        "PolicyWriter": "few_shot",
        "PyseriniConfig": "pyserini",
        "RewriteFewShot": "few_shot",
        "WindowConfig": "config",
    },
)
