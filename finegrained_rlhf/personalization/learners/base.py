"""What agents do alike: events written down before anything follows from them; of learners, a draft for a context."""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from finegrained_rlhf.core.checks import require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import LONGEST_TEXT, TextGenerator, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema, Text
from finegrained_rlhf.core.generation.wrappers import AnswerOwner, asked_for, drop_kept_answers
from finegrained_rlhf.personalization.prompts import ask_for, ask_for_text
from finegrained_rlhf.personalization.retrieval import ExactIndex, NoteIndex
from finegrained_rlhf.personalization.span_feedback import EDIT, FIRST_EDIT, EditCost, Tokenise, edit_cost, latest_edits
from finegrained_rlhf.personalization.store.protocol import (
    Event,
    MemoryLimitError,
    MemoryStore,
    NoteChange,
    NoteConflictError,
    RepeatedKeyError,
    UserHandle,
)

TASK = 'Write a short text for a reader from what the field "context" says.'
LEARN_TRIES = 3
"""How often an event is learnt from before it is set aside, unless an agent is told otherwise."""


class UnlearntError(DataError):
    """An event does not say what the agent learns from, as another version of it wrote the event, or something else; or
    what follows from it is more than the memory takes.
    """


UNLEARNT = (ReplyError, UnlearntError)
"""What says that one event cannot be learnt from now, and nothing of others."""
_shown: ContextVar[_Shown | None] = ContextVar("shown", default=None)
"""Who is given the draft that is written now, piece by piece."""
_TRIES = 20  # to write notes that other processes keep changing


class _Shown:
    """Hands on the pieces of a draft, and knows whether there was one."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text, self.begun = on_text, False

    def __call__(self, piece: str) -> None:
        self.begun |= bool(piece.strip())
        self._on_text(piece)


@dataclass(frozen=True)
class Draft:
    """A draft, with all that must be known when it comes back edited, by this process or another one.

    Attributes:
        key: idempotency key of the round.
        text: y_t.
        preference: f_t, that it was written by; empty for none.
        retrieved: keys of the notes that it rests on, the nearest first.
        owner: whose it is (`UserHandle.owner`). A draft of a user who was forgotten meanwhile is refused when it comes
            back; 0 for one that no learner wrote.
    """

    key: str
    text: str
    preference: str = ""
    retrieved: tuple[str, ...] = ()
    owner: int = 0


class EventQueue(Protocol):
    """Who learns from events later, such as a `LearningWorker`."""

    def put(self, agent: MemoryAgent, handle: UserHandle, event: Event) -> None:
        """Learn from an event, later."""
        ...


class MemoryAgent(ABC):
    """What every agent does that learns from events: it derives notes from them, catches up and forgets.

    Many processes may serve one user: what is remembered is in the memory alone. No transaction is open while the
    language model is asked.

    Args:
        memory: of users.
        llm: a language model, for everything that is asked.
        task: what is to be done, in a sentence for the language model.
        longest_text: most characters of a text that is given to the agent; a longer one is refused.
        index: by which a user's notes are found; None compares all of them.
        learn_tries: how often an event is learnt from before it is set aside.

    Raises:
        ConfigError: no try.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Of events that notes are derived from."""
    worker: EventQueue | None = None
    """Learns from new events, so that nobody waits for it; None: who brings an event waits."""

    def __init__(
        self,
        memory: MemoryStore,
        llm: TextGenerator,
        *,
        task: str,
        longest_text: int = LONGEST_TEXT,
        index: NoteIndex | None = None,
        learn_tries: int = LEARN_TRIES,
    ) -> None:
        if learn_tries < 1:
            raise ConfigError(f"learn_tries: expected at least 1, got {learn_tries}")
        self.memory, self.llm, self.task, self._longest_text = memory, llm, task, longest_text
        self._index, self.learn_tries = index or ExactIndex(), learn_tries

    def catch_up(self, user: str, again: bool = False) -> int:
        """Learn from events that were only written down: the process died, or an error came in between.

        An event that cannot be learnt from holds up no other. After `learn_tries` it is set aside.

        Args:
            user: who it is, from the caller's own login.
            again: also from those that were set aside.

        Returns:
            How many were learnt from.

        Raises:
            FineGrainedError: the language model is out of reach; it counts as no try.
        """
        handle = self.memory.reader(user)
        learnt = 0
        for event in self._unlearnt(handle):
            if again or event.tries < self.learn_tries:
                learnt += self._tried(handle, event)
        return learnt

    def set_aside(self, user: str) -> list[Event]:
        """Events that `catch_up` no longer learns from, since that failed too often, the oldest first."""
        return [event for event in self._unlearnt(self.memory.reader(user)) if event.tries >= self.learn_tries]

    def _unlearnt(self, handle: UserHandle) -> list[Event]:
        return [event for event in handle.pending() if event.kind in self.kinds]

    def _tried(self, handle: UserHandle, event: Event) -> bool:
        """Learn from an event; whether it was possible."""
        try:
            self.learn(handle, event)
        except UNLEARNT:
            return False
        return True

    def forget(self, user: str) -> bool:
        """Remove all that is known of a user, also from answers that the language model's wrappers keep.

        What is under way for the user brings nothing back; whoever keeps answers keeps none that comes after this.

        Returns:
            Whether there was anything.
        """
        handle = self.memory.reader(user)
        epoch = handle.answer_owner.epoch + 1
        try:  # first, so that nothing is left where the process dies in between
            self._drop_answers(replace(handle.answer_owner, epoch=epoch))
        finally:
            try:
                known = self.memory.forget(user)
            finally:
                self._index.drop(handle)
                now = self.memory.reader(user).answer_owner
                if now.epoch != epoch:  # another forgot at the same time
                    self._drop_answers(now)
        return known

    def _drop_answers(self, owner: AnswerOwner) -> None:
        """Let all that this agent asks drop the answers that it keeps of an owner."""
        drop_kept_answers(self.llm, owner)

    @abstractmethod
    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        """The notes that follow from an event."""

    def _take_up(self, handle: UserHandle, event: Event) -> None:
        """Learn from an event that is new, now or by the worker."""
        if event.applied:
            return
        if self.worker is None:
            self.learn(handle, event)
        else:
            self.worker.put(self, handle, event)

    def learn(self, handle: UserHandle, event: Event) -> None:
        """Write what follows from an event; where it cannot be learnt from, that is counted, and raised.

        Args:
            handle: of the user.
            event: that was recorded.

        Raises:
            ReplyError: nothing can be derived from the event now.
            UnlearntError: nor ever by this agent, since the event does not say what it reads; or as long as the memory
                takes no more.
            ForgottenUserError: the user was forgotten: the language model is not asked any more.
            FineGrainedError: the language model is out of reach, or what follows is refused.
        """
        try:
            self._apply(handle, event)
        except UNLEARNT:
            handle.count_try(event)
            raise

    def _apply(self, handle: UserHandle, event: Event) -> None:
        for left in reversed(range(_TRIES)):
            if handle.event(event.id).applied:  # by another process, or the same edit waited twice
                return
            decisions = handle.decisions()
            try:
                with asked_for(handle.answer_owner):
                    changes = self._read(handle, event)
                handle.apply(event, changes, decisions)
                return
            except NoteConflictError:
                if not left:
                    raise
            except MemoryLimitError as error:
                raise UnlearntError(f"what follows from it is not stored: {error}", record=event.key) from error

    def _read(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        try:
            return self._derive(handle, event)
        except (KeyError, TypeError, AttributeError, DataError) as error:
            raise UnlearntError(f"it cannot be read: {type(error).__name__}: {error}", record=event.key) from error

    def _ask(self, template: str, data: Mapping[str, Any]) -> str:
        return ask_for_text(self.llm, template, self.task, data, self._longest_text, on_text=_shown.get())

    def _ask_for(self, template: str, data: Mapping[str, Any], schema: ReplySchema) -> Mapping[str, Any]:
        return ask_for(self.llm, template, self.task, data, schema)

    def _check(self, name: str, text: str, empty: bool = False) -> None:
        require_text(text, name, empty=empty)
        if len(text) > self._longest_text:
            raise MemoryLimitError(f"{name}: {len(text)} characters, more than {self._longest_text} (longest_text)")


def readable_edits(handle: UserHandle) -> list[Event]:
    """The latest edit of each of the user's drafts, of those that say what was edited, in the order of the drafts."""
    read = (
        edit for edit in handle.events(EDIT) if {type(edit.body.get(name)) for name in ("draft", "edited")} == {str}
    )
    return list(latest_edits(read).values())


class Learner(MemoryAgent):
    """An agent of protocol 1 of Gao et al. 2024: it writes, the user edits, it learns.

    Args:
        memory: of users.
        llm: a language model, for everything that is asked.
        task: what is to be written, in a sentence for the language model.
        tokenise: tokens in which edits are counted.
        longest_text: most characters of a context, draft or edited text; a longer one is refused.
        longest_preference: most characters of a preference; a longer one is refused.
        index: by which a user's notes are found; None compares all of them.
        learn_tries: how often an edit is learnt from before it is set aside.
    """

    kinds = (EDIT,)

    def __init__(
        self,
        memory: MemoryStore,
        llm: TextGenerator,
        *,
        task: str = TASK,
        tokenise: Tokenise = words_and_marks,
        longest_text: int = LONGEST_TEXT,
        longest_preference: int = 2_000,
        index: NoteIndex | None = None,
        learn_tries: int = LEARN_TRIES,
    ) -> None:
        super().__init__(memory, llm, task=task, longest_text=longest_text, index=index, learn_tries=learn_tries)
        self._tokenise, self._longest_preference = tokenise, longest_preference

    def respond(
        self, user: str, context: str, key: str | None = None, on_text: Callable[[str], None] | None = None
    ) -> Draft:
        """A draft for a context. Nothing is written.

        Where the language model gives nothing that can be used of what the draft could rest on, it is written by what
        there is: the nearest preference, or none.

        Args:
            user: who it is, from the caller's own login.
            context: x_t.
            key: of the round, unique for the user; a random one by default.
            on_text: is given the draft piece by piece while it is written, where the language model gives pieces; what
                counts is the draft that is returned.

        Raises:
            ReplyError: the language model writes no draft for this context, or one that broke off.
            FineGrainedError: the language model is out of reach, or a text is refused.
        """
        self._check("context", context)
        key = uuid.uuid4().hex if key is None else key
        handle = self.memory.reader(user)
        shown = _shown.set(None if on_text is None else _Shown(on_text))
        try:
            with asked_for(handle.answer_owner):
                return replace(self._draft(handle, context, key), owner=handle.owner)
        finally:
            _shown.reset(shown)

    def observe_edit(self, user: str, context: str, draft: Draft, edited: str) -> EditCost:
        """Learn from what the user made of a draft. The same edit again changes nothing.

        Another edited text of the same draft is an event like the first, under a key of its own, with notes of its own.
        It is compared with the draft too, not with the text before, so that each event says by itself what became of
        the draft: a draft costs what its latest edit costs, never a sum over them. The same text
        after another one is an edit, too: only what equals the latest edit is a retry.

        The edit is safe in the event log before anything is derived from it. When this raises, `catch_up` derives what
        is missing, or sets the edit aside where that fails too often.

        Args:
            user: whose draft it is.
            context: x_t, that it was written for.
            draft: as `respond` gave it.
            edited: y'_t; the draft's own text where the user left it as it is.

        Returns:
            The cost of the edit.

        Raises:
            RepeatedKeyError: the draft's key was used for another draft, or for something else.
            ConsentError: the user has not allowed that anything is stored.
            ForgottenUserError: the user was forgotten after the draft was written.
            ReplyError: nothing can be derived from the edit now.
            FineGrainedError: as for `respond`.
        """
        for name, text in (("context", context), ("draft", draft.text), ("edited", edited)):
            self._check(name, text, empty=name != "context")
        handle = self.memory.user(user, draft.owner)
        body = {"context": context, "draft": draft.text, "edited": edited, "preference": draft.preference}
        self._take_up(handle, self._recorded(handle, draft, body))
        return self._cost(body)

    def _recorded(self, handle: UserHandle, draft: Draft, body: Mapping[str, Any]) -> Event:
        """The event of an edit, the first or another one of its draft; a retry is what equals the latest."""
        used = {"notes": list(draft.retrieved)}
        try:
            event = handle.record(draft.key, EDIT, body, used)
        except RepeatedKeyError:
            first = next((event for event in handle.events() if event.key == draft.key), None)
            if first and (first.kind, {**first.body, "edited": body["edited"]}) != (EDIT, body):
                raise
        else:
            if handle.events(EDIT, last=1)[-1:] == [event]:
                return event
        edits = [edit for edit in handle.events(EDIT) if draft.key in (edit.key, (edit.used or {}).get(FIRST_EDIT))]
        if edits and edits[-1].body == body:
            return edits[-1]
        again = f"{draft.key}\0{len(edits)}\0{body['edited']}"
        digest = hashlib.blake2b(again.encode(), digest_size=16).hexdigest()
        return handle.record(f"{draft.key[:32]}/{digest}", EDIT, body, {**used, FIRST_EDIT: draft.key})

    @abstractmethod
    def _draft(self, handle: UserHandle, context: str, key: str) -> Draft:
        """The draft y_t for a context x_t."""

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        """The notes that follow from an edit; none for a learner that keeps none."""
        return []

    def _write(self, context: str, preference: str = "") -> str:
        """A text for a context, by a preference where there is one."""
        if not preference:
            return self._ask("write", {"context": context})
        return self._ask("write_preferred", {"context": context, "preference": preference})

    def _has_shown(self) -> bool:
        """Whether somebody was shown a piece of the draft that is written now."""
        shown = _shown.get()
        return shown is not None and shown.begun

    def _show(self, text: str) -> None:
        """Show a draft that did not come in pieces."""
        if (shown := _shown.get()) is not None:
            shown(text)

    def _infer(self, edits: Sequence[Mapping[str, Any]]) -> str:
        """The latent preference that explains edits (LPI, algorithm 1, line 11)."""
        pairs = [{"draft": edit["draft"], "edited": edit["edited"]} for edit in edits]
        return self._preference("infer", {"edits": pairs})

    def _preference(self, template: str, data: Mapping[str, Any]) -> str:
        schema = ReplySchema({"preference": Text(self._longest_preference)})
        return str(self._ask_for(template, data, schema)["preference"])

    def _cost(self, edit: Mapping[str, Any]) -> EditCost:
        return edit_cost(edit["draft"], edit["edited"], self._tokenise)
