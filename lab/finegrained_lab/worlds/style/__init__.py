"""StyleWorld: contexts of several sources, a reader who wants each source's texts in another style, and a writer."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "EditDrafts": "drafts",
        "HoldDrafts": "drafts",
        "MakeStyleWorld": "make",
        "PolicyDrafts": "streams",
        "RoundsToTexts": "streams",
        "StyleEditScorer": "reward",
        "StyleReader": "reader",
        "StyleWorldMonitor": "monitor",
        "StyleWriter": "writer",
        "UserStreams": "streams",
        "WriteMajorityStyle": "drafts",
        "WriteStyleTexts": "drafts",
    },
)
