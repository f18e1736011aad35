"""Gold answers as a system's answers: what one who imitated them without a fault would reach."""

from __future__ import annotations

from dataclasses import dataclass

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples


@dataclass(frozen=True)
class WriteGoldAnswers(Settings):
    """Write the gold answers of a prompt file as outputs, which `finegrained evaluate outputs=FILE` measures.

    Attributes:
        data: prompt file whose records have a gold answer; of several the first counts.
        output: the outputs, JSON lines.
    """

    data: InputFile
    output: OutputFile

    def run(self) -> None:
        """Write them.

        Raises:
            DataError: naming file and record; an unreadable one, or one without a gold answer.
        """
        records = [OutputRecord.of(example, example.references[:1]) for example in read_examples(self.data)]
        write_outputs(self.output, records)
        print(f"{len(records)} gold answers -> {self.output}")
