"""Collecting fine-grained feedback: tasks for people, what they marked, how far they agree, and feedback records."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Adjudicate": "adjudication",
        "MakeAnnotationTasks": "project.make",
        "MeasureAgreement": "measure_agreement",
        "RandomSelection": "project.selection",
        "ReadAnnotations": "reading.read",
        "SuggestByJudge": "project.suggestions",
    },
)
