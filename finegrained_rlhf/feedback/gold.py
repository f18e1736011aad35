"""Gold answers as a system's answers: what one who imitated them without a fault would reach."""

from __future__ import annotations

from dataclasses import dataclass

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples


@dataclass(frozen=True)
class WriteGoldAnswers:
    """Write the gold answers of a prompt file as outputs, which `evaluate.py outputs=FILE` measures.

    Attributes:
        data: prompt file whose records have a gold answer; of several the first counts.
        output: the outputs, JSON lines.
    """

    data: str
    output: str

    def run(self) -> None:
        """Write them.

        Raises:
            DataError: naming file and record; one without a gold answer.
        """
        records = []
        for i, example in enumerate(read_examples(self.data)):
            if not example.references:
                raise DataError("expected a gold answer, got none", file=self.data, record=i, field="answer")
            records.append(OutputRecord.of(example, example.references[:1]))
        write_outputs(self.output, records)
        print(f"{len(records)} gold answers -> {self.output}")
