"""Data sets on disk: `ManyFormats` names the files and the format of one, `Reading` what was read there.

A kind of data has one format of the project's own (`jsonl`) and those that packages that join read (`parts.toml`, under
the kind's name): functions of a path, whose further parameters are options of the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.extensions import load_part, parts
from finegrained_rlhf.core.fields import Settings


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


Part = Literal["all", "train", "dev", "test"]
"""The part of a data set that is published in one file: dialogues are held out by a hash."""


class ManyFormats(Settings):
    """A base of dataclasses that name a `path`, its `format`, and options of all formats, each of which is one's own.

    Attributes:
        kind: of the data, as `parts.toml` has it.
        own: reads the project's own format.
    """

    kind: ClassVar[str]
    own: ClassVar[Any]
    path: str
    format: str

    def __post_init__(self) -> None:
        if self.format not in self.formats():
            more = "" if parts(self.kind) else " (published forms are read by the laboratory: pip install -e lab)"
            raise ConfigError(f"format: expected one of {', '.join(self.formats())}, got {self.format!r}{more}")
        taken = self.options(self.format)
        for name in self._options():
            if name not in taken and getattr(self, name) != getattr(type(self), name):
                owners = " or ".join(repr(other) for other in self.formats() if name in self.options(other))
                of = f"format {owners}" if owners else "a format that no package brings"
                raise ConfigError(f"{name} belongs to {of}, the format is {self.format!r}")

    @classmethod
    def formats(cls) -> tuple[str, ...]:
        """Names of the formats."""
        return ("jsonl", *parts(cls.kind))

    @classmethod
    def options(cls, format: str) -> frozenset[str]:
        """The options that a format has; a format that is not known has none."""
        known = signature(load_part(cls.kind, format)).parameters if format in parts(cls.kind) else ()
        return frozenset(known) - {"path"}

    def _options(self) -> list[str]:
        return [one.name for one in fields(self) if one.name not in ("path", "format")]  # type: ignore[arg-type]

    def read(self) -> Any:
        """Read the examples.

        Raises:
            DataError: naming file, record and field.
        """
        if self.format == "jsonl":
            return type(self).own(self.path)
        taken = self.options(self.format)
        return load_part(self.kind, self.format)(self.path, **{name: getattr(self, name) for name in taken})


def require_unique(examples: Sequence[Identified], path: str | Path) -> None:
    """Raise DataError where two examples have one id."""
    twice = [name for name, count in Counter(example.id for example in examples).items() if count > 1]
    if twice:
        raise DataError("the id occurs twice", file=path, record=twice[0], field="id")
