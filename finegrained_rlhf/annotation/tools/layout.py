"""Passages as one text, in which people highlight sentences; and back from places in it to sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PassageLayout:
    """The text, and where its sentences lie.

    Attributes:
        text: a heading a passage, then a line a sentence.
        places: (start, end, passage, sentence) of every title (sentence 0) and sentence, in order.
    """

    text: str
    places: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(cls, passages: Sequence[Sequence[str]]) -> PassageLayout:
        """The layout of passages, each `[title, sentence 1, …]`. The same passages give the same text."""
        text, places = "", []
        for number, parts in enumerate(passages, start=1):
            text += "\n\n" if text else ""
            text += f"[{number}] "
            for sentence, part in enumerate(parts):
                text += "" if sentence == 0 else "\n"
                places.append((len(text), len(text) + len(part), number, sentence))
                text += part
        return cls(text, tuple(places))

    def sentences(self, start: int, end: int) -> list[tuple[int, int]]:
        """(passage, sentence) of everything that a highlighted span touches with more than white space."""
        return [
            (passage, sentence)
            for first, last, passage, sentence in self.places
            if self.text[max(start, first) : min(end, last)].strip()
        ]
