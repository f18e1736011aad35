"""Spans that a model suggests to the people who annotate."""

from __future__ import annotations

from dataclasses import dataclass

from finegrained_rlhf.core.checks import require


@dataclass(frozen=True)
class Suggestion:
    """A span that a model suggests.

    Attributes:
        start: character offset in the marked answer.
        end: after the last character.
        error_type: of the taxonomy.
        score: how sure the model is, in [0, 1]; None for a model that does not say.
        model_version: which model.
    """

    start: int
    end: int
    error_type: str
    score: float | None
    model_version: str

    def __post_init__(self) -> None:
        require(0 <= self.start < self.end, f"expected 0 <= start < end, got {self.start} and {self.end}", "start")
        sure = self.score is None or 0 <= self.score <= 1
        require(sure, f"expected 0 to 1, got {self.score}", "score")
