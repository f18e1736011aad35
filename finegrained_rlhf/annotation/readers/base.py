"""What readers of public span feedback share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from finegrained_rlhf.feedback.records import FeedbackRecord


@dataclass
class PublicReading:
    """What came of public files.

    Attributes:
        records: in the order of the file.
        left_out: why something is not among them, and how often.
    """

    records: list[FeedbackRecord] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


@runtime_checkable
class PublicFeedback(Protocol):
    """Files of span feedback in the form in which they were published."""

    def read(self) -> PublicReading:
        """All records.

        Raises:
            DataError: naming file, record and field.
        """
        ...
