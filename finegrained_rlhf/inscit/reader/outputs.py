"""From what a reader said to predictions in the published format.

Reads the prompt file that `inputs.py` writes and the answers that `finegrained generate` writes to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.feedback.outputs import read_texts
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.inscit.data.reading import INSCIT_DATA, read_inscit
from finegrained_rlhf.inscit.data.records import turns_of
from finegrained_rlhf.inscit.evaluation.predictions import (
    InscitPrediction,
    read_predictions,
    write_predictions,
)
from finegrained_rlhf.inscit.reader.targets import ReaderReply, ReaderTask, read_joint


@dataclass(frozen=True, kw_only=True)
class ReadReaderOutputs(Settings):
    """Write predictions; the job of `finegrained read-reader-outputs`.

    Attributes:
        data: file of conversations.
        inputs: prompt file that the reader answered, a prompt a turn.
        responses: its answers, JSON lines of `id` and `response`.
        output: JSON file of predictions.
        task: `joint`: the answers name their evidence; `response`: their evidence is all that the reader was given.
    """

    data: InputFile
    inputs: InputFile
    responses: InputFile
    output: OutputFile
    task: ReaderTask = "joint"

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> dict[str, int]:
        """Read, take apart, write, print one line.

        Returns:
            How many turns there are, how many ids were `unknown` or `repeated`, and how many answers are missing.

        Raises:
            DataError: a file is damaged, or a turn is missing or there twice.
        """
        turns = turns_of(read_inscit(self.data).conversations)
        passages = {
            item.id: [passage.id for passage in item.metadata.get("passages", ())]
            for item in read_prompt_file(self.inputs)
        }
        responses = read_texts(self.responses, "response")
        counts, predictions = Counter[str](), {}
        for turn in turns:
            for name, file in ((turn.name in passages, self.inputs), (turn.name in responses, self.responses)):
                if not name:
                    raise DataError(f"has nothing for turn {turn.name!r}", file=file)
            text, ids = responses[turn.name], passages[turn.name]
            one = read_joint(text, ids) if self.task == "joint" else ReaderReply(text.strip(), tuple(ids))
            counts.update(unknown=one.unknown, repeated=one.repeated, unanswered=not one.answered)
            predictions[turn.key] = InscitPrediction(one.response, one.evidence)
        write_predictions(self.output, turns, predictions)
        read_predictions(self.output, turns)
        summary = {"turns": len(turns), **{name: int(counts[name]) for name in ("unknown", "repeated", "unanswered")}}
        problems = f"{summary['unknown']} ids of passages that were not given, {summary['repeated']} named again"
        print(f"{len(turns)} turns, {problems}, {summary['unanswered']} without an answer -> {self.output}")
        return summary
