"""How much of their documents answers were looked for in: the rest was left out, and nothing was said of it.

Two limits leave text out: `search.max_passages` whole passages, `inputs.max_length` the spans at the end of a passage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Searched:
    """What an answer was looked for in.

    Attributes:
        passages: passages of the dialogue that were searched, at least in part.
        total_passages: passages of the dialogue.
        spans: spans that could be part of the answer.
        total_spans: spans of all its passages.
    """

    passages: int
    total_passages: int
    spans: int
    total_spans: int

    @property
    def dropped_spans(self) -> int:
        """Spans that could not be part of the answer."""
        return self.total_spans - self.spans

    def to_json(self) -> dict[str, int]:
        """The fields of a prediction."""
        return {
            "searched_passages": self.passages,
            "total_passages": self.total_passages,
            "dropped_spans": self.dropped_spans,
        }


@dataclass(frozen=True)
class Coverage:
    """The same over many dialogues; sums.

    Attributes:
        dialogues: answered.
        partly_searched: dialogues of which something was left out.
        searched_passages: passages that were searched, at least in part.
        total_passages: passages of all dialogues.
        dropped_spans: spans that could not be part of an answer.
        total_spans: spans of all passages.
    """

    dialogues: int = 0
    partly_searched: int = 0
    searched_passages: int = 0
    total_passages: int = 0
    dropped_spans: int = 0
    total_spans: int = 0

    @classmethod
    def of(cls, parts: Iterable[Searched]) -> Coverage:
        """The sums over dialogues."""
        rows = list(parts)
        return cls(
            dialogues=len(rows),
            partly_searched=sum(row.dropped_spans > 0 for row in rows),
            searched_passages=sum(row.passages for row in rows),
            total_passages=sum(row.total_passages for row in rows),
            dropped_spans=sum(row.dropped_spans for row in rows),
            total_spans=sum(row.total_spans for row in rows),
        )

    def to_json(self) -> dict[str, Any]:
        """The sums by name."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.partly_searched} of {self.dialogues} dialogues were searched in part: {self.searched_passages} of "
            f"{self.total_passages} passages, {self.dropped_spans} of {self.total_spans} spans left out"
        )

    def warn(self) -> None:
        """Log a warning where something was left out."""
        if self.partly_searched:
            logger.warning("%s (dialki.search.max_passages and dialki.inputs.max_length say what fits)", self)
