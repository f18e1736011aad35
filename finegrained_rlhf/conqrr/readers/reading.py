"""One entrance to all files of questions in dialogues: which format a file has, and what was read from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from finegrained_rlhf.conqrr.readers.base import RewriteReading
from finegrained_rlhf.conqrr.readers.canard import CanardPart, UnknownAnswers, read_canard
from finegrained_rlhf.conqrr.readers.jsonl import read_rewrite_jsonl
from finegrained_rlhf.conqrr.readers.qrecc import read_qrecc
from finegrained_rlhf.conqrr.readers.topiocqa import read_topiocqa
from finegrained_rlhf.conqrr.readers.trec.cast import read_cast
from finegrained_rlhf.conqrr.readers.trec.cast22 import read_cast22
from finegrained_rlhf.conqrr.readers.trec.ikat import read_ikat
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, at_least

Format = Literal["jsonl", "qrecc", "canard", "cast", "cast22", "ikat", "topiocqa"]
FORMATS: tuple[Format, ...] = get_args(Format)

_JUDGED = ("cast", "cast22", "ikat")
_FORMATS_OF = {
    "rewrites": ("cast",),
    "qrels": _JUDGED,
    "min_relevance": _JUDGED,
    "unknown": ("canard",),
    "part": ("canard",),
}
"""Which formats an option belongs to."""


@dataclass(frozen=True)
class RewriteData(Settings):
    """Where questions in dialogues come from.

    Attributes:
        path: the file.
        format: `jsonl` (the project's own), `qrecc`, `canard`, `topiocqa`, `cast` (TREC CAsT 2019 to 2021), `cast22`
            (CAsT 2022) or `ikat` (TREC iKAT).
        rewrites: `cast` only: the resolved questions of 2019.
        qrels: TREC only: the judgements.
        min_relevance: TREC only: the lowest grade that makes a passage gold, at least 1; nDCG counts every grade.
        unknown: `canard` only: keep "I don't know." as an answer, or drop it.
        part: `canard` only: all, train, dev or test; a tenth of the dialogues is dev, two tenths are test.
    """

    path: InputFile
    format: Format = "jsonl"
    rewrites: InputFile | None = None
    qrels: InputFile | None = None
    min_relevance: Annotated[int, at_least(1)] = 1
    unknown: UnknownAnswers = "keep"
    part: CanardPart = "all"

    def __post_init__(self) -> None:
        for name, owners in _FORMATS_OF.items():
            if self.format not in owners and getattr(self, name) != getattr(type(self), name):
                of = " or ".join(map(repr, owners))
                raise ConfigError(f"{name} belongs to format {of}, the format is {self.format!r}")

    file_fields: ClassVar[tuple[str, ...]] = ("path", "rewrites", "qrels")
    """The fields that name files."""

    @property
    def files(self) -> dict[str, Path]:
        """The files that are read, by the field that names them."""
        return {name: Path(value) for name in self.file_fields if (value := getattr(self, name)) is not None}

    def read(self) -> RewriteReading:
        """Read the examples.

        Raises:
            DataError: naming file, record and field.
        """
        if self.format == "qrecc":
            return read_qrecc(self.path)
        if self.format == "canard":
            return read_canard(self.path, self.unknown, self.part)
        if self.format == "topiocqa":
            return read_topiocqa(self.path)
        if self.format == "cast":
            return read_cast(self.path, self.rewrites, self.qrels, self.min_relevance)
        if self.format == "cast22":
            return read_cast22(self.path, self.qrels, self.min_relevance)
        if self.format == "ikat":
            return read_ikat(self.path, self.qrels, self.min_relevance)
        examples = tuple(read_rewrite_jsonl(self.path))
        return RewriteReading(examples, len({example.dialogue for example in examples}))


def as_rewrite_data(data: str | RewriteData) -> RewriteData:
    """`data`, where a text names a file in the project's own format."""
    return RewriteData(data) if isinstance(data, str) else data
