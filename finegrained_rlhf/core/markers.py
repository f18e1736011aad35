"""What an annotation says of a setting beside its type: `epochs: Annotated[int, at_least(1), harmless] = 4`.

The range of a number; that a text is the path of what is read or written; that a run may go on with another value.
Knows annotations alone.
"""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union


@dataclass(frozen=True)
class Bound:
    """A marker: an end of a number's range, or of the number of a list's items.

    Attributes:
        relation: `at least`, `above`, `at most` or `below`.
        value: the end.
    """

    relation: Literal["at least", "above", "at most", "below"]
    value: float

    def holds(self, number: float) -> bool:
        """Whether a number lies on the right side of it."""
        if self.relation == "at least":
            return number >= self.value
        if self.relation == "above":
            return number > self.value
        return number <= self.value if self.relation == "at most" else number < self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}" if abs(self.value) < 1e15 else f"{self.relation} {self.value}"


def at_least(value: float) -> Bound:
    """≥ `value`."""
    return Bound("at least", value)


def above(value: float) -> Bound:
    """> `value`."""
    return Bound("above", value)


def at_most(value: float) -> Bound:
    """≤ `value`."""
    return Bound("at most", value)


def below(value: float) -> Bound:
    """< `value`."""
    return Bound("below", value)


@dataclass(frozen=True)
class Reads:
    """A marker: a text is the path of what is read.

    Attributes:
        what: lies there: `file`, a file or directory of any kind; a model, a tokenizer, a data set, a corpus, an index.
    """

    what: Literal["file", "model", "tokenizer", "dataset", "corpus", "index"] = "file"

    @property
    def hub(self) -> Literal["model", "dataset"] | None:
        """What a name on the Hugging Face Hub may stand for instead; None where it may not."""
        if self.what == "dataset":
            return "dataset"
        return "model" if self.what in ("model", "tokenizer") else None


@dataclass(frozen=True)
class Writes:
    """A marker: a text is the path of what is written. Where that lies decides nothing, so it is harmless as well.

    Attributes:
        directory: whether a directory is, or else a file.
    """

    directory: bool = False


@dataclass(frozen=True)
class Harmless:
    """A marker: a run may go on with another value. It does not decide what a step computes."""


harmless = Harmless()


@dataclass(frozen=True)
class Gone:
    """A marker: a word that a setting took before.

    Attributes:
        word: the former value.
        advice: what to give instead.
    """

    word: str
    advice: str


InputFile = Annotated[str, Reads()]
"""A file or a directory that is read."""
ModelName = Annotated[str, Reads("model")]
"""A model directory, a run directory, or a model on the Hub."""
TokenizerName = Annotated[str, Reads("tokenizer")]
"""A directory with a tokenizer, or a model on the Hub that has one."""
DataName = Annotated[str, Reads("dataset")]
"""A file, or a data set on the Hub."""
CorpusPath = Annotated[str, Reads("corpus")]
"""A corpus of passages: a file, or a directory of them."""
IndexPath = Annotated[str, Reads("index")]
"""The directory of an index of passages."""
OutputFile = Annotated[str, Writes()]
OutputDirectory = Annotated[str, Writes(directory=True)]
Seed = Annotated[int, at_least(0), at_most(2**63 - 1)]


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, each with the markers that stand around the union; a type alone is its own."""
    if typing.get_origin(annotation) is Annotated:
        inner, *marks = typing.get_args(annotation)
        return tuple(Annotated[(member, *marks)] for member in members(inner))
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for member in typing.get_args(annotation) for part in members(member))
    return (annotation,)


def markers(annotation: Any) -> tuple[Any, ...]:
    """All markers of a type, those of the members of a union and of the items of a list included."""
    collected: tuple[Any, ...] = ()
    for member in members(annotation):
        if typing.get_origin(member) is Annotated:
            inner, *marks = typing.get_args(member)
            collected += (*marks, *markers(inner))
        elif typing.get_origin(member) is not Literal:
            collected += tuple(mark for part in typing.get_args(member) for mark in markers(part))
    return collected


def advice_on(value: Any, annotation: Any) -> str:
    """What to give instead of a word that a setting took before, as the end of a line; else empty."""
    gone = (mark for mark in markers(annotation) if isinstance(mark, Gone) and mark.word == value)
    return next((f"; {mark.advice}" for mark in gone), "")


def plain_type(annotation: Any) -> Any:
    """A type without its markers."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation
