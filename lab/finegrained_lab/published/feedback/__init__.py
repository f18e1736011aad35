"""Public span feedback in its published forms, as our records."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "FavaBench": "fava",
        "MqmSpans": "mqm",
        "Prm800k": "prm800k",
        "RagTruth": "ragtruth",
        "ReadPublicFeedback": "read",
    },
)
