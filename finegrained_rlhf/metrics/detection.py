"""How well claims of an error agree with the truth: the four counts and what is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Confusion:
    """Counts of items that have an error or not, and are claimed to have one or not.

    Attributes:
        found: with an error, claimed.
        missed: with an error, not claimed.
        false_alarms: without one, claimed.
        clean: without one, not claimed.
    """

    found: int
    missed: int
    false_alarms: int
    clean: int

    @staticmethod
    def of(has_error: Iterable[bool], claimed: Iterable[bool]) -> Confusion:
        """The counts of items given as two rows of flags of one length."""
        pairs = list(zip(has_error, claimed, strict=True))
        return Confusion(
            found=sum(truth and claim for truth, claim in pairs),
            missed=sum(truth and not claim for truth, claim in pairs),
            false_alarms=sum(claim and not truth for truth, claim in pairs),
            clean=sum(not truth and not claim for truth, claim in pairs),
        )

    @property
    def items(self) -> int:
        """All items."""
        return self.found + self.missed + self.false_alarms + self.clean

    @property
    def errors(self) -> int:
        """Items with an error."""
        return self.found + self.missed

    @property
    def claims(self) -> int:
        """Items claimed to have one."""
        return self.found + self.false_alarms

    @property
    def accuracy(self) -> float | None:
        """Share of items on which claim and truth agree; None without items."""
        return share(self.found + self.clean, self.items)

    @property
    def precision(self) -> float | None:
        """Share of the claims that are right; None where nothing is claimed."""
        return share(self.found, self.claims)

    @property
    def recall(self) -> float | None:
        """Share of the errors that are claimed; None where there are none."""
        return share(self.found, self.errors)

    @property
    def false_alarm_rate(self) -> float | None:
        """Share of the items without an error that are claimed; None where there are none."""
        return share(self.false_alarms, self.false_alarms + self.clean)

    @property
    def f1(self) -> float | None:
        """2·found / (errors + claims), the harmonic mean of precision and recall; None where both are empty."""
        return share(2 * self.found, self.errors + self.claims)


def share(part: float, whole: float) -> float | None:
    """`part` of `whole`; None of nothing."""
    return part / whole if whole else None


def harmonic_mean(precision: float, recall: float) -> float:
    """F1 of a precision and a recall that count different things; 0 where both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def uninformative(trust: Mapping[str, Any]) -> str | None:
    """Why a reward model's judgements carry nothing, by its `trust.json`; None where they do or nobody measured.

    Args:
        trust: with `confusion` (the counts of a `Confusion`), or of pairs with `accuracy` and `items` alone.

    Returns:
        A clause: labels of one class, one judgement for everything, or no more right than the more frequent class.
    """
    counts, accuracy = trust.get("confusion"), trust.get("accuracy")
    if not isinstance(counts, Mapping):
        if trust.get("items") and isinstance(accuracy, int | float) and accuracy <= 0.5:
            return f"orders {accuracy:.0%} of the pairs as people do, which chance does too"
        return None
    try:
        confusion = Confusion(**{name: int(counts[name]) for name in ("found", "missed", "false_alarms", "clean")})
    except (KeyError, TypeError, ValueError):
        return None
    items, errors = confusion.items, confusion.errors
    if not items:
        return None
    if errors in (0, items):
        return f"all {items:,} labels that it was measured on are of one class ({'an error' if errors else 'no error'})"
    majority = max(errors, items - errors) / items
    if confusion.claims in (0, items):
        claim = "an error" if confusion.claims else "no error"
        return f"finds {claim} in every one of {items:,} segments: it is right in {confusion.accuracy:.0%}"
    if confusion.accuracy is not None and confusion.accuracy <= majority:
        return (
            f"is right in {confusion.accuracy:.1%} of {items:,} segments, and who always names the more frequent class "
            f"in {majority:.1%}"
        )
    return None
