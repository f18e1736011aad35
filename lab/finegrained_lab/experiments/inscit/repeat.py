"""The baseline that repeats the turn before, as a file of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from finegrained_lab.published.inscit.data import INSCIT_DATA, read_inscit, turns_of
from finegrained_lab.published.inscit.predictions import last_turn, write_predictions
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile


@dataclass(frozen=True, kw_only=True)
class RepeatLastTurn(Settings):
    """Write the predictions of `last_turn`; a step of `pipeline=inscit/world`.

    Attributes:
        data: file of conversations.
        output: JSON file of predictions.
    """

    data: InputFile
    output: OutputFile

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> int:
        """Read, write, print one line; returns how many turns there are."""
        turns = turns_of(read_inscit(self.data).conversations)
        write_predictions(self.output, turns, last_turn(turns))
        print(f"{len(turns)} turns repeat the one before -> {self.output}")
        return len(turns)
