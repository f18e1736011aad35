"""What a rater says of the systems' answers to a turn, and what it counts.

Evidence utility and factual consistency have five steps from 2 to −2, and −10 where there is no evidence, or no fact to
check; coherence has four, without 0. Source: eval/human_eval of the authors' repository.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.inscit.evaluation.predictions import turn_number

NOTHING_TO_RATE = -10
SCALES: Mapping[str, tuple[int, ...]] = {
    "evidence_utility": (2, 1, 0, -1, -2, NOTHING_TO_RATE),
    "factual_consistency": (2, 1, 0, -1, -2, NOTHING_TO_RATE),
    "coherence": (2, 1, -1, -2),
}
"""The values of each scale, the best first."""
MEASURES = (*SCALES, "comprehensiveness")
_COHERENCE = {2: 5.0, 1: 1 + 8 / 3, -1: 1 + 4 / 3, -2: 1.0}


def points(scale: str, value: int) -> float:
    """A value in points from 1 to 5; nothing to rate counts as the best, as in the original."""
    if scale == "coherence":
        return _COHERENCE[value]
    return float((2 if value == NOTHING_TO_RATE else value) + 3)


@dataclass(frozen=True)
class TurnRating:
    """What one rater says of a turn.

    Attributes:
        conversation: id of the conversation.
        turn: from 1.
        rater: who says it.
        values: by system and scale.
        most: the most comprehensive systems, one or more.
        least: the least comprehensive ones; none where all others are in between.
    """

    conversation: str
    turn: int
    rater: str
    values: Mapping[str, Mapping[str, int]]
    most: frozenset[str]
    least: frozenset[str]

    def __post_init__(self) -> None:
        require(len(self.values) > 0, "expected the values of at least one system", "values")
        for system, values in self.values.items():
            for scale, known in SCALES.items():
                value = values.get(scale)
                expected = ", ".join(map(str, known))
                require(value in known, f"expected one of {expected}, got {value!r}", f"values.{system}.{scale}")
        require(len(self.most) > 0, "expected at least one most comprehensive system", "most")
        both = sorted(self.most & self.least)
        require(not both, f"{', '.join(both)} cannot be most and least comprehensive", "least")
        unknown = sorted((self.most | self.least) - set(self.values))
        require(not unknown, f"names {', '.join(unknown)}, which are not rated", "most")

    @property
    def key(self) -> tuple[str, int]:
        """Of the turn."""
        return self.conversation, self.turn

    def rank(self, system: str) -> int:
        """Of a system by comprehensiveness: 1 the most; the least 3, or 2 where nothing lies in between; others 2."""
        if system in self.most:
            return 1
        between = len(self.values) > len(self.most) + len(self.least)
        return 3 if system in self.least and between else 2


def write_ratings(path: str | Path, ratings: Iterable[TurnRating]) -> None:
    """Write ratings as JSON lines."""
    rows = []
    for one in ratings:
        values = {system: dict(values) for system, values in one.values.items()}
        row = {"conv_id": one.conversation, "turn_id": one.turn, "rater": one.rater, "values": values}
        rows.append({**row, "most": sorted(one.most), "least": sorted(one.least)})
    write_jsonl(path, rows)


def read_ratings(path: str | Path) -> list[TurnRating]:
    """Read what `write_ratings` wrote, or anybody's in that form.

    Raises:
        DataError: a row is not as it should be, or a rater has rated a turn twice, or systems differ between rows.
    """
    ratings: list[TurnRating] = []
    seen: set[tuple[str, int, str]] = set()
    for number, row in enumerate(read_jsonl(path)):
        try:
            one = _rating(row)
            key = (*one.key, one.rater)
            require(key not in seen, f"{one.rater} has rated {one.conversation!r}, turn {one.turn} twice", "rater")
            same = not ratings or set(ratings[0].values) == set(one.values)
            require(same, f"rates {', '.join(one.values)}, the rows before it others", "values")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        seen.add(key)
        ratings.append(one)
    if not ratings:
        raise DataError("expected at least one rating", file=path)
    return ratings


def _rating(row: Mapping[str, Any]) -> TurnRating:
    values = {
        system: dict(as_object(part, f"values.{system}"))
        for system, part in as_object(get_field(row, "values"), "values").items()
    }
    return TurnRating(
        require_text(get_field(row, "conv_id"), "conv_id"),
        turn_number(get_field(row, "turn_id")),
        require_text(get_field(row, "rater"), "rater"),
        values,
        frozenset(text_list(get_field(row, "most"), "most")),
        frozenset(text_list(get_field(row, "least"), "least")),
    )
