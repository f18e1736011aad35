"""What became of an item that a language model was asked about, and how many may have no reply."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from enum import StrEnum

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, FineGrainedError


class Outcome(StrEnum):
    """What became of an item: its reply was read; the model or its service would not answer it; no reply of it could be
    read; or the service failed at it while it answered others.
    """

    READ = "read"
    REFUSED = "refused"
    UNREADABLE = "unreadable"
    FAILED = "failed"


class ReplyError(FineGrainedError):
    """A language model gave no reply to one prompt that can be used; others are not concerned.

    The message quotes neither prompt nor reply, which may say what a user wrote, so that it can be logged.

    Args:
        problem: what is wrong, in a sentence.
        reply: of the language model, where there is one.

    Attributes:
        paid: tokens of the prompt and of the reply, where the service says them: such a reply is paid for, too.
    """

    outcome = Outcome.FAILED

    def __init__(self, problem: str, reply: str = "") -> None:
        super().__init__(problem)
        self.reply = reply
        self.paid: tuple[int, int] | None = None


class UnreadableReplyError(ReplyError):
    """A reply is not what its prompt asks for, or was cut off. Another prompt may help."""

    outcome = Outcome.UNREADABLE


class RefusedReplyError(ReplyError):
    """The model or its service will not answer the prompt. Asking again does not help."""

    outcome = Outcome.REFUSED


class FailedReplyError(ReplyError):
    """The service failed at this prompt while it answers others. Asking again does not help."""

    outcome = Outcome.FAILED


class FailureBudgetError(FineGrainedError):
    """More items have no reply that can be used than the setting allows with which the message begins."""


REPLY_ERRORS = {error.outcome: error for error in (RefusedReplyError, UnreadableReplyError, FailedReplyError)}
"""The error of each outcome that is none."""


class OutcomeCounts:
    """How many items had which outcome, and whether more of them failed than may.

    Args:
        failures: the share of items that may go without a reply; None counts alone. It is of the latest `window` items,
            and three standard deviations of chance are granted to it, so that one failure among the first few items is
            no reason to end a run, while the first three without any other are.
        window: items that are looked at.
        name: of the setting, for the error.

    Raises:
        ConfigError: the share is no number from 0 to 1.
    """

    def __init__(self, failures: float | None = None, window: int = 500, name: str = "failures") -> None:
        if failures is not None and (not is_number(failures) or not 0 <= failures <= 1):
            raise ConfigError(f"{name}: expected a share from 0 to 1, got {failures!r}")
        self.failures, self.name = failures, name
        self.counts = Counter[str]()
        self._latest: deque[str] = deque(maxlen=window)

    def add(self, outcomes: Iterable[str]) -> None:
        """Count the outcomes of some items; any word but `read` counts as an item that has nothing that can be used."""
        for outcome in outcomes:
            self.counts[outcome] += 1
            self._latest.append(outcome)

    def check(self, source: str, last: str = "") -> None:
        """End where too many of the latest items have no reply.

        Args:
            source: who was asked, for the error.
            last: the problem of the latest item without one, for the error.

        Raises:
            FailureBudgetError: more than the budget allows.
        """
        if self.failures is None:
            return
        items, share = len(self._latest), self.failures
        without = Counter(outcome for outcome in self._latest if outcome != Outcome.READ)
        allowed = share * items + 3 * math.sqrt(share * (1 - share) * items)
        if without.total() > allowed:
            kinds = ", ".join(f"{count} {outcome}" for outcome, count in sorted(without.items()))
            raise FailureBudgetError(
                f"{self.name}={share:g}: {source} gave no reply that can be used to {without.total()} of the latest "
                f"{items} items ({kinds}), which is more than that share and chance allow"
                + (f"; the last one: {last}" if last else "")
            )
