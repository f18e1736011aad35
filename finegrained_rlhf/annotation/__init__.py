"""Collecting fine-grained feedback: tasks for people, what they marked, how far they agree, and feedback records."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Adjudicate": "adjudication",
        "MakeAnnotationTasks": "project",
        "MeasureAgreement": "measure_agreement",
        "RandomSelection": "items",
        "ReadAnnotations": "reading",
        "SuggestByJudge": "items",
    },
)
