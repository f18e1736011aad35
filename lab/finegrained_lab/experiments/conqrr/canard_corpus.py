"""The corpus that CANARD's answers make, as a job of an experiment."""

from __future__ import annotations

from dataclasses import dataclass

from finegrained_lab.published.questions.canard import canard_passages
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputFile


@dataclass(frozen=True)
class WriteCanardCorpus(Settings):
    """Write every answer of a file of CANARD with its article and section, one passage a line.

    Attributes:
        data: CANARD's file.
        output: the corpus, JSON lines with `id`, `text` (the answer) and `title` (article, section).
    """

    data: InputFile
    output: OutputFile

    def run(self) -> None:
        """Write it.

        Raises:
            DataError: naming file, record and field.
        """
        passages = canard_passages(self.data)
        write_jsonl(self.output, ({"id": p.id, "text": p.text, "title": p.title} for p in passages))
        print(f"{len(passages)} passages -> {self.output}")
