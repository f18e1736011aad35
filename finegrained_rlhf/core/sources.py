"""What was read from a data set on disk: `Reading`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from finegrained_rlhf.core.errors import DataError


class Identified(Protocol):
    """An example with an id that occurs once in its data set."""

    @property
    def id(self) -> str:
        """The id."""


E = TypeVar("E", bound=Identified)


@dataclass(frozen=True)
class Reading(Generic[E]):
    """What was read from a data set. A kind of example has a subclass that sets `entry`, `example` and `measured`.

    Attributes:
        examples: the records, in the order of the file.
        entries: what the file holds: dialogues, or records.
        skipped: what gave no example, by reason.
        notes: what was read otherwise than it stands in the file, by kind.
    """

    entry: ClassVar[str] = "entries"
    """What an entry is called in reports, in the plural."""
    example: ClassVar[str] = "record"
    """What an example is called in messages."""

    examples: tuple[E, ...]
    entries: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        examples: Sequence[E],
        entries: int,
        skipped: Mapping[str, int],
        notes: Mapping[str, int],
        path: str | Path,
    ) -> Self:
        """The reading of a file.

        Raises:
            DataError: the file gives no example, or the id of one occurs twice.
        """
        if not examples:
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items())) or f"no {cls.entry}"
            raise DataError(f"holds no {cls.example} ({why})", file=path)
        require_unique(examples, path)
        return cls(tuple(examples), entries, dict(skipped), dict(notes))

    def report(self) -> dict[str, Any]:
        """Counts for a run directory or the terminal, ready for JSON; the entries stand under the name `entry`."""
        return {
            self.entry: self.entries,
            "examples": len(self.examples),
            "skipped": dict(sorted(self.skipped.items())),
            "notes": dict(sorted(self.notes.items())),
            **self.measured(),
        }

    def measured(self) -> dict[str, Any]:
        """Counts that only this kind of example has, ready for JSON."""
        return {}


def require_unique(examples: Sequence[Identified], path: str | Path) -> None:
    """Raise DataError where two examples have one id."""
    twice = [name for name, count in Counter(example.id for example in examples).items() if count > 1]
    if twice:
        raise DataError("the id occurs twice", file=path, record=twice[0], field="id")
