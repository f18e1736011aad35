"""What is true of predictions for an InscitWorld: the human table of the thesis, in truth.

Knows files of conversations and predictions, and the oracle. Runs no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.inscit.data.reading import read_inscit
from finegrained_rlhf.inscit.data.records import turns_of
from finegrained_rlhf.inscit.evaluation.predictions import read_predictions
from finegrained_rlhf.worlds.inscit.oracle import InscitOracle, mean_judgement


@dataclass(frozen=True, kw_only=True)
class JudgePredictions(Settings):
    """Judge predictions by the oracle; a step of `pipeline=inscit/world`.

    Attributes:
        world: directory of the world.
        data: file of its conversations.
        predictions: file of predictions for them.
        output: JSON file for what `oracle.mean_judgement` says.
    """

    world: str
    data: InputFile
    predictions: InputFile
    output: OutputFile

    def run(self) -> dict[str, Any]:
        """Judge, write, print one line.

        Raises:
            DataError: a file is damaged, or the predictions are not those of the data.
        """
        turns = turns_of(read_inscit(self.data).conversations)
        said, oracle = read_predictions(self.predictions, turns), InscitOracle.load(self.world)
        found = mean_judgement(
            oracle.judge(turn.conversation, turn.number, said[turn.key].response, said[turn.key].evidence)
            for turn in turns
        )
        write_json(self.output, found)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in found.items() if isinstance(value, float))
        print(f"{len(turns)} turns: {shown} -> {self.output}")
        return found
