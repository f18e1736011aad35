"""Public span feedback as a feedback file: what `finegrained read-public-feedback` runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord, check_types
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy


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


@dataclass(frozen=True)
class ReadPublicFeedback(Settings):
    """Write public span feedback as a feedback file, and say what was left out.

    Attributes:
        source: the files, in the form in which they were published.
        output: feedback FILE.
        taxonomy: what is marked in them.
    """

    source: PublicFeedback
    output: OutputFile
    taxonomy: Taxonomy = QA_FEEDBACK

    def __post_init__(self) -> None:
        if not isinstance(self.source, PublicFeedback):
            raise ConfigError(f"source: {type(self.source).__name__} reads no public feedback (read)")

    def run(self) -> PublicReading:
        """Read, check, write; prints what was left out.

        Raises:
            DataError: a file is damaged, nothing is left of it, or it has a type that the taxonomy does not have.
        """
        reading = self.source.read()
        if not reading.records:
            raise DataError("no record is left: nothing is written", file=self.output)
        for record in reading.records:
            try:
                check_types(record, self.taxonomy)
            except DataError as error:
                raise error.at(record=record.id) from None
        write_feedback(self.output, reading.records)
        print(f"{len(reading.records)} records -> {self.output}")
        for reason, count in reading.left_out.items():
            print(f"  left out or repaired: {reason}: {count}")
        return reading
