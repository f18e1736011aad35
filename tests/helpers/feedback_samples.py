"""Feedback records that label tests build by hand."""

from __future__ import annotations

from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, MissingInfo, SpanError

LAKE = Passage(
    "",
    "The lake",
    (
        "The lake is three kilometres wide at its widest point.",
        "Its water stays cold all the year round.",
        "Nobody has ever been seen swimming in it.",
    ),
)


def mark(text: str, piece: str, error_type: str) -> SpanError:
    """The span of `piece` in `text`."""
    start = text.index(piece)
    return SpanError(start, start + len(piece), error_type)


def record(
    first: str,
    errors: list[tuple[str, str]] | None = None,
    others: tuple[str, str, str] = ("It is cold.", "It is wide.", "It is not."),
    correction: str = "",
    missing: list[MissingInfo] | None = None,
    preferences: tuple[int, ...] = (0, 1, 2, 1, 0, 2),
    passages: tuple[Passage, ...] = (LAKE,),
    name: str = "r",
) -> FeedbackRecord:
    """A record whose prediction 1 is `first`, with errors given as (marked piece, type)."""
    spans = tuple(mark(first, piece, kind) for piece, kind in errors or [])
    return FeedbackRecord(
        id=name,
        question="What is the lake like?",
        passages=passages,
        gold="It is wide.",
        predictions=(first, *others),
        feedback=Feedback(spans, tuple(missing or ()), correction),
        preferences=preferences,
    )
