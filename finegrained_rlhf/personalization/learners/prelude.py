"""PRELUDE's agents (Gao et al. 2024): CIPHER, those that show similar edits, and those that learn nothing of a context.

CIPHER consolidates induced preferences based on historical edits with retrieval (algorithm 1). ICL-edit and CoT-edit
show edits of similar contexts to the language model; the oracle, no learning, and one preference from the first edits
or the last learn nothing of a context (section 4.2). By name `cipher_5` is CIPHER with k = 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import TextGenerator, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema, Text
from finegrained_rlhf.personalization.learners.base import TASK, Draft, Learner, readable_edits
from finegrained_rlhf.personalization.retrieval import ContextEncoder, HashedWords, nearest_encoded, to_bytes
from finegrained_rlhf.personalization.span_feedback import EDIT, Tokenise
from finegrained_rlhf.personalization.store.protocol import (
    Event,
    ForgottenUserError,
    MemoryStore,
    Note,
    NoteChange,
    UserHandle,
)


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

    fields: ClassVar[tuple[str, ...]]
    """Of a note's body, which it reads; notes of agents of other kinds are left alone."""

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
        return nearest_encoded(self._index, handle, self._encoder, context, self._k, _contexts, fields=self.fields)

    def _of_context(self, event: Event, **says: str) -> list[NoteChange]:
        """A note that is found by the context of an edit."""
        vector = to_bytes(self._encoder.encode([event.body["context"]])[0])
        return [NoteChange(event.key, {"encoder": self._encoder.identity, **says}, vector)]


def _contexts(handle: UserHandle, notes: Sequence[Note]) -> list[str]:
    """The contexts of the edits that notes are of, by whose keys they are known."""
    contexts = {edit.key: str(edit.body["context"]) for edit in handle.events(EDIT) if "context" in edit.body}
    if not all(note.key in contexts for note in notes):
        raise ForgottenUserError("the user was forgotten while vectors were made anew")
    return [contexts[note.key] for note in notes]


class IclEdit(RetrievingLearner):
    """Writes after k edits of similar contexts, as they are; without them where nothing can be written after them."""

    fields = ("draft", "edited")

    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        notes = self._retrieved(handle, context)
        if not notes:
            return Draft(key, self._write(context))
        examples = [{"draft": note.body["draft"], "edited": note.body["edited"]} for note in reversed(notes)]
        try:
            text, preference = self._after({"context": context, "examples": examples})
        except ReplyError:
            if self._has_shown():
                raise
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
        self._show(reply["text"])
        return reply["text"], reply["preference"]


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

    fields = ("preference",)

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
        note = handle.note(self.NOTE, unused=True)
        if note is not None and note.state in ("used", "held"):
            return []
        since = 0 if note is None else note.decided  # what somebody removed is explored anew
        explored = [edit for edit in readable_edits(handle) if edit.id > since][: self._rounds]
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
        edits = readable_edits(handle)[-self._last :]
        try:
            preference = self._infer([edit.body for edit in edits]) if edits else ""
        except ReplyError:
            preference = ""
        return Draft(key, self._write(context, preference), preference)


AGENTS = (
    "oracle",
    "no_learning",
    "explore_then_exploit",
    "continual",
    "icl_edit_5",
    "cot_edit_5",
    "cipher_1",
    "cipher_5",
)
"""The agents of the paper; `icl_edit_K`, `cot_edit_K` and `cipher_K` take any K."""
_NAME = re.compile(r"oracle|no_learning|explore_then_exploit|continual|(icl_edit|cot_edit|cipher)_([1-9]\d*)")


@dataclass(frozen=True)
class AgentSettings:
    """What agents are made with.

    Attributes:
        explore_rounds: T_e of explore-then-exploit.
        last: edits that `continual` infers from.
        delta: δ of CIPHER.
        encoder: φ; None is words.
        task: what is to be written, in a sentence for the language model.
        tokenise: tokens in which edits are counted.
    """

    explore_rounds: int = 5
    last: int = 5
    delta: float = 0.0
    encoder: ContextEncoder | None = None
    task: str = TASK
    tokenise: Tokenise = words_and_marks


def check_agent(name: str, *others: str, key: str = "agents") -> None:
    """Refuse a name that no agent has.

    Args:
        name: that was given.
        others: that may be given, too.
        key: that it was given by.

    Raises:
        ConfigError: it is one.
    """
    if not isinstance(name, str) or (_NAME.fullmatch(name) is None and name not in others):
        raise ConfigError(f"{key}: expected names like {', '.join((*AGENTS, *others))}, got {name!r}")


def make_agent(
    name: str, memory: MemoryStore, llm: TextGenerator, truth: Callable[[str], str], settings: AgentSettings
) -> Learner:
    """The agent of a name.

    Args:
        name: one that `check_agent` takes.
        memory: that it alone uses.
        llm: a language model.
        truth: the true preference for a context, which the oracle alone is given.
        settings: of all agents.

    Raises:
        ConfigError: no such agent, or a setting outside its range.
    """
    check_agent(name)
    kind, _, k = name.rpartition("_")
    encoder = settings.encoder
    own: dict[str, Any] = {"task": settings.task, "tokenise": settings.tokenise}
    if name == "oracle":
        return Oracle(memory, llm, truth, **own)
    if name == "no_learning":
        return NoLearning(memory, llm, **own)
    if name == "explore_then_exploit":
        return ExploreThenExploit(memory, llm, settings.explore_rounds, **own)
    if name == "continual":
        return Continual(memory, llm, settings.last, **own)
    if kind == "icl_edit":
        return IclEdit(memory, llm, int(k), encoder, **own)
    if kind == "cot_edit":
        return CotEdit(memory, llm, int(k), encoder, **own)
    return Cipher(memory, llm, int(k), settings.delta, encoder, **own)
