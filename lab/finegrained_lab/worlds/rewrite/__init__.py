"""RewriteWorld: dialogues whose questions need a rewrite before a search finds the passage."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "MakeRewriteWorld": "make",
        "RewriteWorldConfig": "dialogues",
    },
)
