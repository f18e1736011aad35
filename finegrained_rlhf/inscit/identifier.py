"""Which candidates the next answer rests on: scores of a trained DIALKI, and thresholds that select among them.

A candidate is a passage of one span. Source: thesis, section 5.4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from finegrained_rlhf.core.checks import as_object, get_field, is_number, require
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import ModelName, at_least
from finegrained_rlhf.dialki.data import parse_dialogue
from finegrained_rlhf.dialki.model.search import SelectBy, passages_above
from finegrained_rlhf.inscit.conversation import EvidencePassage, unique

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finder import Finder

SELECTED = 4
"""Most passages that the identifier selects for a turn."""


@dataclass(frozen=True)
class EvidenceSelection(Settings):
    """Which candidates are selected: the best one, and more of them while their scores exceed γ.

    Attributes:
        score: what the thresholds are compared with: `logits`, `probabilities` among the candidates, or `sigmoid`.
        threshold: γ; None selects the best one alone.
        empty: nothing is selected where the best score does not exceed this; None selects always.
        most: at most so many.
    """

    score: SelectBy = "logits"
    threshold: float | None = None
    empty: float | None = None
    most: Annotated[int, at_least(1)] = SELECTED

    def of(self, scored: Mapping[str, float]) -> tuple[str, ...]:
        """The ids of the selected candidates of a turn, the highest score first; of equal ones the earlier candidate.

        Args:
            scored: the score of each candidate by its id, at least one.
        """
        if self.empty is not None and max(scored.values()) <= self.empty:
            return ()
        ids = list(scored)
        return tuple(ids[i] for i in passages_above(list(scored.values()), self.threshold, self.most, range(len(ids))))

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EvidenceSelection:
        """Read what `to_json` gave.

        Raises:
            DataError: naming the field.
        """
        values = {field.name: get_field(row, field.name, "selection.") for field in fields(cls)}
        known = ", ".join(get_args(SelectBy))
        score, most = values["score"], values["most"]
        require(score in get_args(SelectBy), f"expected one of {known}, got {score!r}", "selection.score")
        for name in ("threshold", "empty"):
            number = values[name] is None or is_number(values[name])
            require(number, f"expected a number or null, got {values[name]!r}", f"selection.{name}")
        right = isinstance(most, int) and most >= 1
        require(right, f"expected a whole number of at least 1, got {most!r}", "selection.most")
        return cls(**values)


def read_selection(path: str | Path) -> EvidenceSelection:
    """The thresholds that a run with `tune` wrote into its `results`.

    Raises:
        DataError: the file is damaged or holds none.
    """
    try:
        row = as_object(read_json(path), "(file)")
        require(row.get("tune") is not None, "these thresholds were not tuned", "tune")
        return EvidenceSelection.from_json(as_object(get_field(row, "selection"), "selection"))
    except DataError as error:
        raise error.at(file=path) from None


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


def asked_row(
    name: str,
    context: Sequence[str],
    earlier: Sequence[Sequence[EvidencePassage]],
    candidates: Sequence[EvidencePassage],
) -> dict[str, Any]:
    """A dialogue to be answered, as a line of `dialki/data.py` without its gold.

    Args:
        name: of the turn.
        context: what was said, the user first and last.
        earlier: the evidence of each agent turn, oldest first.
        candidates: passages of one span each; what an agent turn rests on is told where it is among them.
    """
    place = {passage.id: number for number, passage in enumerate(candidates)}
    turns: list[dict[str, Any]] = []
    for number, text in enumerate(context):
        evidence = unique(passage.id for passage in earlier[number // 2]) if number % 2 else []
        labels = [one_span(place[one]) for one in evidence if one in place]
        turns.append({"role": "agent" if number % 2 else "user", "text": text, "knowledge": labels or None})
    return {"id": name, "turns": turns, "passages": [_passage(one) for one in candidates]}


def one_span(passage: int) -> dict[str, int]:
    """A passage of one span as knowledge of a dialogue, by its place among the candidates."""
    return {"passage": passage, "begin": 0, "end": 0}


def _passage(one: EvidencePassage) -> dict[str, Any]:
    return {"id": one.id, "title": "|".join(one.titles), "spans": [" ".join(one.text.split())]}
