"""The agents that learn nothing of a context: the oracle, no learning, one preference from the first edits or the last.

Source: Gao et al. 2024, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.personalization.edits import EDIT
from finegrained_rlhf.personalization.learners.base import Draft, Learner
from finegrained_rlhf.personalization.store.protocol import MemoryStore, UserHandle
from finegrained_rlhf.personalization.store.records import Event, NoteChange


class NoLearning(Learner):
    """Writes without a preference; what users do is written down, and nothing follows from it."""

    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        return Draft(key, self._write(context))


class Oracle(Learner):
    """Writes by the true preference f*_t.

    Args:
        memory: of users.
        llm: a language model.
        truth: the true preference for a context.
        **settings: as for every `Learner`.
    """

    def __init__(self, memory: MemoryStore, llm: TextGenerator, truth: Callable[[str], str], **settings: Any) -> None:
        super().__init__(memory, llm, **settings)
        self._truth = truth

    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        preference = self._truth(context)
        return Draft(key, self._write(context, preference), preference)


class ExploreThenExploit(Learner):
    """Writes without a preference in the first T_e rounds, and then by one that is inferred once from their edits.

    Args:
        memory: of users.
        llm: a language model.
        rounds: T_e.
        **settings: as for every `Learner`.

    Raises:
        ConfigError: fewer than one round.
    """

    NOTE = "explored"

    def __init__(self, memory: MemoryStore, llm: TextGenerator, rounds: int = 5, **settings: Any) -> None:
        super().__init__(memory, llm, **settings)
        if rounds < 1:
            raise ConfigError(f"rounds: expected at least 1, got {rounds}")
        self._rounds = rounds

    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        note = handle.note(self.NOTE)
        preference = "" if note is None else str(note.body["preference"])
        return Draft(key, self._write(context, preference), preference, () if note is None else (note.key,))

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        if handle.note(self.NOTE) is not None:
            return []
        explored = handle.events(EDIT)[: self._rounds]
        if len(explored) < self._rounds:
            return []
        preference = self._infer([edit.body for edit in explored])
        return [NoteChange(self.NOTE, {"preference": preference}, evidence=tuple(edit.id for edit in explored))]


class Continual(Learner):
    """Infers one preference anew in every round, from the latest edits, whatever their contexts.

    Where none can be inferred, it writes without one.

    The paper says all past edits; its code takes the last five.

    Args:
        memory: of users.
        llm: a language model.
        last: edits that it is inferred from.
        **settings: as for every `Learner`.

    Raises:
        ConfigError: fewer than one edit.
    """

    def __init__(self, memory: MemoryStore, llm: TextGenerator, last: int = 5, **settings: Any) -> None:
        super().__init__(memory, llm, **settings)
        if last < 1:
            raise ConfigError(f"last: expected at least 1, got {last}")
        self._last = last

    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        edits = handle.events(EDIT, last=self._last)
        try:
            preference = self._infer([edit.body for edit in edits]) if edits else ""
        except ReplyError:
            preference = ""
        return Draft(key, self._write(context, preference), preference)
