"""One entrance to all dialogue files: which format a file has, and what was read from it.

What is cut off by a token limit is counted where examples become tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.readers.base import DialogueReading
from finegrained_rlhf.dialki.readers.doc2dial import DOCUMENTS, read_doc2dial
from finegrained_rlhf.dialki.readers.dstc11 import Dstc11Part, read_dstc11
from finegrained_rlhf.dialki.readers.jsonl import read_dialogue_jsonl
from finegrained_rlhf.dialki.readers.wow import read_wow

Format = Literal["jsonl", "doc2dial", "wow", "dstc11"]
FORMATS: tuple[Format, ...] = ("jsonl", "doc2dial", "wow", "dstc11")


@dataclass(frozen=True)
class DialogueData:
    """Where dialogues come from: a `Source[DialogueExample]`.

    Attributes:
        path: the file; the directory for `dstc11`.
        format: `jsonl` (the project's own), `doc2dial`, `wow` or `dstc11`.
        documents: `doc2dial` only: the document file; `doc2dial_doc.json` beside `path` when None.
        seen_in: `doc2dial` only: the training dialogues; documents that do not occur there count as unseen.
        keep_unlabelled: `doc2dial` only: keep turns without gold (a blind test set).
        unseen: `wow` only: whether the topics are absent from training; None takes it from the file's name.
        part: `dstc11` only: all, train, dev or test; a tenth of the dialogues is dev, a tenth test.
    """

    path: str
    format: Format = "jsonl"
    documents: str | None = None
    seen_in: str | None = None
    keep_unlabelled: bool = False
    unseen: bool | None = None
    part: Dstc11Part = "all"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")
        settings = {"doc2dial": ("documents", "seen_in", "keep_unlabelled"), "wow": ("unseen",), "dstc11": ("part",)}
        for owner, names in settings.items():
            for name in names:
                if owner != self.format and getattr(self, name) != getattr(type(self), name):
                    raise ConfigError(f"{name} belongs to format {owner!r}, the format is {self.format!r}")

    @property
    def files(self) -> dict[str, Path]:
        """The files that are read, by the field that names them; a directory for `dstc11`."""
        documents = self.documents
        if self.format == "doc2dial" and documents is None:
            documents = str(Path(self.path).parent / DOCUMENTS)
        named = {"path": self.path, "documents": documents, "seen_in": self.seen_in}
        return {name: Path(value) for name, value in named.items() if value is not None}

    def read(self) -> DialogueReading:
        """Read the examples.

        Raises:
            DataError: naming file, record and field.
        """
        if self.format == "doc2dial":
            return read_doc2dial(self.path, self.documents, self.seen_in, self.keep_unlabelled)
        if self.format == "wow":
            return read_wow(self.path, self.unseen)
        if self.format == "dstc11":
            return read_dstc11(self.path, self.part)
        return read_dialogue_jsonl(self.path)
