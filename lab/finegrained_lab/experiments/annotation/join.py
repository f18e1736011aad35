"""Feedback of several rounds as one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy


@dataclass(frozen=True)
class JoinFeedback(Settings):
    """Write the records of several feedback files to one, file by file.

    A question that was annotated in several rounds stays as often: a record whose id an earlier file has gets the
    number of its file behind it.

    Attributes:
        data: feedback files, in order.
        output: feedback FILE.
        taxonomy: what was marked.
    """

    data: Sequence[InputFile]
    output: OutputFile
    taxonomy: Taxonomy = QA_FEEDBACK

    def __post_init__(self) -> None:
        if not self.data:
            raise ConfigError("data: expected at least one feedback file")

    def run(self) -> list[FeedbackRecord]:
        """Read all, write one; prints one line. Raises DataError where a file is missing or damaged."""
        joined: dict[str, FeedbackRecord] = {}
        for number, path in enumerate(self.data, start=1):
            records = read_feedback(path, self.taxonomy)
            known = set(joined)
            for record in records:
                name = f"{record.id}@{number}" if record.id in known else record.id
                joined[name] = replace(record, id=name)
        write_feedback(self.output, joined.values())
        print(f"{len(joined)} records of {len(self.data)} files -> {self.output}")
        return list(joined.values())
