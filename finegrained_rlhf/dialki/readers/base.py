"""What every reader gives back, and the checks of JSON values that they share. Knows no format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.feedback.records import require


@dataclass(frozen=True)
class Reading:
    """What a reader found.

    Attributes:
        examples: one record for each turn to answer.
        dialogues: dialogues in the file.
        skipped: turns that gave no example, by reason.
        notes: what was read otherwise than it stands in the file, by kind.
    """

    examples: tuple[DialogueExample, ...]
    dialogues: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Counts for a run directory or the terminal, ready for JSON.

        `gold` maps the number of gold entries of an example to the number of examples; `history_labels` counts the
        turns with a label of their own over all examples.
        """
        gold = Counter(len(example.gold) for example in self.examples)
        return {
            "dialogues": self.dialogues,
            "examples": len(self.examples),
            "skipped": dict(sorted(self.skipped.items())),
            "notes": dict(sorted(self.notes.items())),
            "gold": {str(number): count for number, count in sorted(gold.items())},
            "history_labels": sum(turn.knowledge is not None for example in self.examples for turn in example.turns),
            "passages": sum(len(example.passages) for example in self.examples),
            "unseen": sum(example.unseen is True for example in self.examples),
        }


def as_object(value: Any, field: str) -> Mapping[str, Any]:
    """`value` as a JSON object."""
    require(isinstance(value, Mapping), f"expected an object, got {type(value).__name__}", field)
    return value


def as_list(value: Any, field: str) -> list[Any]:
    """`value` as a JSON list."""
    require(isinstance(value, list), f"expected a list, got {type(value).__name__}", field)
    return value


def as_index(value: Any, field: str) -> int:
    """`value` as a whole number of 0 or more."""
    right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(right, f"expected a whole number of 0 or more, got {value!r}", field)
    return int(value)


def as_flag(value: Any, field: str) -> bool | None:
    """`value` as true, false or null."""
    require(value is None or isinstance(value, bool), f"expected true, false or null, got {value!r}", field)
    return value


def finish(
    examples: list[DialogueExample],
    dialogues: int,
    skipped: Mapping[str, int],
    notes: Mapping[str, int],
    path: Any,
) -> Reading:
    """The reading, or a DataError where the file has no turn to answer or an example's id occurs twice."""
    if not examples:
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items())) or "no dialogues"
        raise DataError(f"holds no turn to answer ({why})", file=path)
    twice = [name for name, count in Counter(example.id for example in examples).items() if count > 1]
    if twice:
        raise DataError("the id occurs twice", file=path, record=twice[0], field="id")
    return Reading(tuple(examples), dialogues, dict(skipped), dict(notes))
