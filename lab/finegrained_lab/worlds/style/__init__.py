"""StyleWorld: contexts of several sources, a reader who wants each source's texts in another style, and a writer."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "EditDrafts": "drafts",
        "HoldDrafts": "drafts",
        "MakeStyleWorld": "make",
        "StyleEditScorer": "reward",
        "StyleReader": "reader",
        "StyleWorldMonitor": "monitor",
        "StyleWriter": "writer",
        "WriteMajorityStyle": "drafts",
        "WriteStyleTexts": "drafts",
    },
)
