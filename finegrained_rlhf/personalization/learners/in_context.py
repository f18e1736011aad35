"""Agents that show edits of similar contexts to the language model: ICL-edit and CoT-edit (Gao et al. 2024, 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.schema import ReplySchema, Text
from finegrained_rlhf.personalization.edits import EDIT
from finegrained_rlhf.personalization.learners.base import Draft, Learner
from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder, HashedWords
from finegrained_rlhf.personalization.retrieval.index import nearest_encoded
from finegrained_rlhf.personalization.retrieval.nearest import to_bytes
from finegrained_rlhf.personalization.store.protocol import MemoryStore, UserHandle
from finegrained_rlhf.personalization.store.records import Event, ForgottenUserError, Note, NoteChange


class RetrievingLearner(Learner):
    """A learner with a note a round, found again by its context.

    Args:
        memory: of users.
        llm: a language model.
        k: notes that are retrieved; all in the first k rounds.
        encoder: φ, of contexts; words by default.
        **settings: as for every `Learner`.

    Raises:
        ConfigError: k below 1.
    """

    def __init__(
        self,
        memory: MemoryStore,
        llm: TextGenerator,
        k: int = 5,
        encoder: ContextEncoder | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(memory, llm, **settings)
        if k < 1:
            raise ConfigError(f"k: expected at least 1, got {k}")
        self._k, self._encoder = k, encoder or HashedWords()

    def _retrieved(self, handle: UserHandle, context: str) -> list[Note]:
        """The user's k notes with the nearest contexts, the nearest first."""
        return nearest_encoded(self._index, handle, self._encoder, context, self._k, _contexts)

    def _of_context(self, event: Event, **says: str) -> list[NoteChange]:
        """A note that is found by the context of an edit."""
        vector = to_bytes(self._encoder.encode([event.body["context"]])[0])
        return [NoteChange(event.key, {"encoder": self._encoder.identity, **says}, vector)]


def _contexts(handle: UserHandle, notes: Sequence[Note]) -> list[str]:
    """The contexts of the edits that notes were derived from."""
    contexts = {event.id: str(event.body["context"]) for event in handle.events(EDIT)}
    if not all(note.event in contexts for note in notes):
        raise ForgottenUserError("the user was forgotten while vectors were made anew")
    return [contexts[note.event] for note in notes]


class IclEdit(RetrievingLearner):
    """Writes after k edits of similar contexts, as they are; without them where nothing can be written after them."""

    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        notes = self._retrieved(handle, context)
        if not notes:
            return Draft(key, self._write(context))
        examples = [{"draft": note.body["draft"], "edited": note.body["edited"]} for note in reversed(notes)]
        try:
            text, preference = self._after({"context": context, "examples": examples})
        except ReplyError:
            return Draft(key, self._write(context))
        return Draft(key, text, preference, tuple(note.key for note in notes))

    def _after(self, data: Mapping[str, Any]) -> tuple[str, str]:
        """A text for a context after examples, and the preference that it goes by."""
        return self._ask("in_context", data), ""

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        return self._of_context(event, draft=event.body["draft"], edited=event.body["edited"])


class CotEdit(IclEdit):
    """Names the preference behind k edits of similar contexts, and writes by it, in one reply."""

    def _after(self, data: Mapping[str, Any]) -> tuple[str, str]:
        schema = ReplySchema({"preference": Text(self._longest_preference), "text": Text(self._longest_text)})
        reply = self._ask_for("chain", data, schema)
        return reply["text"], reply["preference"]
