"""A trained DIALKI that selects the evidence of one turn, for applications.

Files of turns are `identify.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.dialki.data import parse_dialogue
from finegrained_rlhf.inscit.data.records import EvidencePassage
from finegrained_rlhf.inscit.identifier.data import asked_row
from finegrained_rlhf.inscit.identifier.identify import read_selection
from finegrained_rlhf.inscit.identifier.selection import EvidenceSelection

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finder import Finder


class EvidenceIdentifier:
    """Selects the passages that the next answer rests on.

    Args:
        finder: a trained DIALKI.
        selection: its thresholds; None selects the best candidate alone.
    """

    def __init__(self, finder: Finder[Any], selection: EvidenceSelection | None = None) -> None:
        self._finder, self._selection = finder, selection or EvidenceSelection()

    @classmethod
    def open(cls, checkpoint: ModelName, selection: str | None = None) -> EvidenceIdentifier:
        """A trained DIALKI from its run directory.

        Args:
            checkpoint: run directory or model directory.
            selection: the `results` of `finegrained identify-evidence tune=…`; None selects the best candidate alone.

        Raises:
            ModelError: no readable model.
            DataError: the thresholds cannot be read.
        """
        from finegrained_rlhf.dialki.training.systems import load_finder

        chosen = None if selection is None else read_selection(selection)
        return cls(load_finder(checkpoint), chosen)

    def select(
        self,
        context: Sequence[str],
        earlier: Sequence[Sequence[EvidencePassage]],
        candidates: Sequence[EvidencePassage],
    ) -> tuple[str, ...]:
        """The ids of the selected candidates, the best one first.

        Args:
            context: what was said, the user first and last.
            earlier: the evidence of each agent turn, oldest first.
            candidates: passages; of none nothing is selected.
        """
        if not candidates:
            return ()
        (example,) = parse_dialogue(asked_row("turn", context, earlier, candidates))
        ((answer,),) = self._finder.stream([example])
        ids = [candidates[number].id for number in answer.searched]
        return self._selection.of(dict(zip(ids, answer.scores(self._selection.score), strict=True)))
