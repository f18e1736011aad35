"""What RewriteWorld and CANARD show of chapter 4."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "RewriteTable": "results",
        "RewriteWorldTable": "rewrite_world",
        "SampleRewrites": "samples",
    },
)
