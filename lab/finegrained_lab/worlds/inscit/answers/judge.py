"""What is true of predictions for an InscitWorld: the human table of the thesis, in truth.

Runs no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finegrained_lab.published.inscit.data import read_inscit, turns_of
from finegrained_lab.published.inscit.predictions import read_predictions
from finegrained_lab.worlds.inscit.oracle import InscitOracle, mean_judgement
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile


@dataclass(frozen=True, kw_only=True)
class JudgePredictions(Settings):
    """Judge predictions by the oracle; a step of `pipeline=inscit/world`.

    Attributes:
        world: directory of the world.
        data: file of its conversations.
        predictions: file of predictions for them.
        output: JSON file for what `oracle.mean_judgement` says.
    """

    world: InputFile
    data: InputFile
    predictions: InputFile
    output: OutputFile

    def run(self) -> dict[str, Any]:
        """Judge, write, print one line.

        Raises:
            DataError: a file is damaged, or the predictions are not those of the data.
        """
        turns = turns_of(read_inscit(self.data).conversations)
        predictions, oracle = read_predictions(self.predictions, turns), InscitOracle.load(self.world)
        judgement = mean_judgement(
            oracle.judge(turn.conversation, turn.number, predictions[turn.key].response, predictions[turn.key].evidence)
            for turn in turns
        )
        write_json(self.output, judgement)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in judgement.items() if isinstance(value, float))
        print(f"{len(turns)} turns: {shown} -> {self.output}")
        return judgement
