"""CIPHER: consolidates induced preferences based on historical edits with retrieval (Gao et al. 2024, algorithm 1)."""

from __future__ import annotations

from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.personalization.learners.base import Draft
from finegrained_rlhf.personalization.learners.in_context import RetrievingLearner
from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder
from finegrained_rlhf.personalization.store.protocol import MemoryStore, UserHandle
from finegrained_rlhf.personalization.store.records import Event, NoteChange


class Cipher(RetrievingLearner):
    """CIPHER(φ, k, δ): writes by the preferences that were inferred for similar contexts.

    Args:
        memory: of users.
        llm: a language model.
        k: notes that are retrieved.
        delta: δ; an edit that costs no more confirms the preference that the draft was written by.
        encoder: φ, of contexts; words by default.
        **settings: as for every `Learner`.

    Raises:
        ConfigError: k below 1 or a negative δ.
    """

    def __init__(
        self,
        memory: MemoryStore,
        llm: TextGenerator,
        k: int = 5,
        delta: float = 0.0,
        encoder: ContextEncoder | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(memory, llm, k, encoder, **settings)
        if delta < 0:
            raise ConfigError(f"delta: expected 0 or more, got {delta}")
        self._delta = delta

    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        notes = self._retrieved(handle, context)  # line 3
        preference = self._aggregated([str(note.body["preference"]) for note in notes])  # line 4
        text = self._write(context, preference)  # line 5
        return Draft(key, text, preference, tuple(note.key for note in notes))

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        edit = event.body
        confirmed = self._cost(edit).distance <= self._delta  # lines 7 and 8
        preference = edit["preference"] if confirmed else self._infer([edit])  # lines 9 and 11
        return self._of_context(event, preference=preference)  # line 12

    def _aggregated(self, preferences: list[str]) -> str:
        """One preference from those of similar contexts, the nearest first; the nearest where they cannot be combined.

        Empty ones say nothing.
        """
        stated = [preference for preference in preferences if preference]
        if len(set(stated)) < 2:
            return stated[0] if stated else ""
        try:
            return self._preference("aggregate", {"preferences": stated})
        except ReplyError:
            return stated[0]
