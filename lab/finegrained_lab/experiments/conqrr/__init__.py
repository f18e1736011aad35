"""Chapter 4 on RewriteWorld, CANARD and QReCC."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "WriteCanardCorpus": "canard_corpus",
        "QreccTable": "qrecc",
        "RewriteDifferences": "differences",
        "RewriteTable": "results",
        "RewriteWorldTable": "rewrite_world",
        "SampleRewrites": "samples",
        "SupervisionTable": "supervision",
    },
)
