"""Scoring a run of the SCAI-QReCC shared task: the job behind `finegrained evaluate-scai`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.conqrr.evaluation.scai import read_scai_run, read_scai_truth, score_scai
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.runtime.directory.provenance import commit_of
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.text.tables import markdown_table


@dataclass(frozen=True)
class EvaluateScai(Settings):
    """The shared task's scores of a `run.json`.

    Attributes:
        data: the ground truth: the task's `ground-truth.json`, or a file of its turns.
        predictions: the run file.
        output: results file (JSON); null prints only.
        first_turns: rewrites of first turns count too.
        missing_truth: turns without truth count too, as wrong, as in QReCC's paper.
    """

    data: InputFile
    predictions: InputFile
    output: OutputFile | None = None
    first_turns: bool = False
    missing_truth: bool = False

    def run(self) -> dict[str, Any]:
        """Read, score, write, print.

        Raises:
            DataError: a broken file, or a run of which no turn is in the data.
        """
        truth = read_scai_truth(self.data)
        run = read_scai_run(self.predictions)
        try:
            scored = score_scai(truth, run, first_turns=self.first_turns, missing_truth=self.missing_truth)
        except DataError as error:
            raise error.at(file=self.predictions) from None
        result = {
            "commit": commit_of(Path(__file__).parent),
            "settings": as_config(self),
            **asdict(scored),
        }
        if self.output is not None:
            write_json(self.output, result)
        counts = {"QR": "QR", "MRR": "MRR"}
        rows = [
            {"score": name, "value": value, "turns": scored.turns[counts.get(name, "answers")]}
            for name, value in scored.scores.items()
        ]
        print(markdown_table(rows, ("score", "value", "turns")), end="")
        if scored.absent:
            print(f"{scored.absent} turns with truth passages have no Model_passages and are left out of MRR")
        if scored.unknown:
            print(f"{scored.unknown} turns of the run are not in the data")
        return result
