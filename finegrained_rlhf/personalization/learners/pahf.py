"""PAHF: an agent that looks up what it knows of a user, asks before it acts where that is too little, and is corrected.

Source: Liang et al. 2026, section 3.2 (the loop) and 3.4 (retrieval and writing).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import LONGEST_TEXT, TextGenerator
from finegrained_rlhf.core.generation.schema import Choice, Field, ReplySchema, Text
from finegrained_rlhf.core.generation.wrappers import asked_for
from finegrained_rlhf.personalization.learners.base import LEARN_TRIES, UNLEARNT, MemoryAgent
from finegrained_rlhf.personalization.retrieval import ContextEncoder, HashedWords, NoteIndex, nearest_encoded, to_bytes
from finegrained_rlhf.personalization.store.protocol import (
    Event,
    MemoryLimitError,
    MemoryStore,
    Note,
    NoteChange,
    UserHandle,
)

ANSWER, FEEDBACK = "answer", "feedback"
"""The kinds of events: f_pre, said before an action, and f_post, said after it."""
FEEDBACK_SETTINGS = ("none", "pre", "post", "both")
"""Which feedback an agent uses; `none` has no memory either, and `both` is PAHF."""
CHOICE_TASK = "You assist a user: you choose one option that they will like."
_FIELDS = ("text",)
Ask = Callable[[str], str]
"""A user who can be asked: a question q_t in, an answer f_pre out; a blank one is none."""


@dataclass(frozen=True)
class ChosenAction:
    """An action a_t, with all that must be known when feedback on it comes, to this process or another one.

    Attributes:
        key: idempotency key of the round.
        instruction: I_t.
        number: of the option, from 0.
        option: its text.
        cues: what the notes say of the matter, distilled; empty for nothing.
        retrieved: keys of the notes that they rest on, the nearest first.
        question: q_t; empty where none was asked.
        answer: f_pre; blank where none was given.
        owner: whose it is, as for a `Draft`.
    """

    key: str
    instruction: str
    number: int
    option: str
    cues: str = ""
    retrieved: tuple[str, ...] = ()
    question: str = ""
    answer: str = ""
    owner: int = 0


class Pahf(MemoryAgent):
    """Ask if need be, act, be corrected (Liang et al. 2026, equations 1 to 3), with a memory of notes for each user.

    Args:
        memory: of users.
        llm: a language model, for everything that the agent does; users are another's.
        feedback: one of `FEEDBACK_SETTINGS`.
        k: notes that are retrieved.
        similarity: τ, a cosine; notes at least so like a new one may be merged with it or replaced by it.
        encoder: of notes and rounds; words by default.
        task: of the agent, in a sentence for the language model.
        longest_text: most characters of an instruction, of all options, or of a remark; a longer one is refused.
        longest_note: most characters of a note, of cues and of a question; a longer one is refused.
        index: by which a user's notes are found; None compares all of them.
        learn_tries: how often a remark is learnt from before it is set aside.

    Raises:
        ConfigError: no such setting, k below 1, τ outside −1 to 1, or no try.
    """

    kinds = (ANSWER, FEEDBACK)

    def __init__(
        self,
        memory: MemoryStore,
        llm: TextGenerator,
        feedback: str = "both",
        k: int = 10,
        similarity: float = 0.3,
        encoder: ContextEncoder | None = None,
        *,
        task: str = CHOICE_TASK,
        longest_text: int = LONGEST_TEXT,
        longest_note: int = 2_000,
        index: NoteIndex | None = None,
        learn_tries: int = LEARN_TRIES,
    ) -> None:
        super().__init__(memory, llm, task=task, longest_text=longest_text, index=index, learn_tries=learn_tries)
        if feedback not in FEEDBACK_SETTINGS:
            raise ConfigError(f"feedback: expected one of {', '.join(FEEDBACK_SETTINGS)}, got {feedback!r}")
        if k < 1:
            raise ConfigError(f"k: expected at least 1, got {k}")
        if not -1.0 <= similarity <= 1.0:
            raise ConfigError(f"similarity: expected a cosine from -1 to 1, got {similarity}")
        self._before, self._after = feedback in ("pre", "both"), feedback in ("post", "both")
        self._k, self._similarity, self._encoder = k, similarity, encoder or HashedWords()
        self._longest_note = longest_note

    def act(
        self, user: str, instruction: str, options: Sequence[str], ask: Ask | None = None, key: str | None = None
    ) -> ChosenAction:
        """Choose an option, after at most one question. A user of whom nothing may be stored is not asked.

        Where the notes cannot be distilled, they are the cues; where it cannot be decided whether to ask, nobody is
        asked. An answer that cannot be learnt from now is used all the same, and waits for `catch_up`; so is one that
        the memory refuses, which is not stored.

        Args:
            user: who it is, from the caller's own login.
            instruction: I_t.
            options: O_t, what there is to choose from.
            ask: the user; None where nobody can be asked: then nothing is written either.
            key: of the round, unique for the user; a random one by default.

        Raises:
            ConfigError: there is no option.
            ReplyError: the language model chooses no option.
            FineGrainedError: the language model is out of reach, or a text is refused.
        """
        if not options:
            raise ConfigError("options: expected at least one")
        self._check("instruction", instruction)
        self._check("options", "\n".join(options))
        key = uuid.uuid4().hex if key is None else key
        task = {"instruction": instruction, "options": list(options)}
        handle = self.memory.reader(user)
        with asked_for(handle.answer_owner):
            return self._act(user, handle, task, ask, key)

    def _act(self, user: str, handle: UserHandle, task: dict[str, Any], ask: Ask | None, key: str) -> ChosenAction:
        owner = handle.owner
        notes = self._retrieve(handle, task)
        retrieved = tuple(note.key for note in notes)
        cues = self._distil(task, notes)
        asks = self._before and ask is not None and self.memory.may_store(user)
        question = self._question(task, cues) if asks else ""
        answer = ""
        if question and ask is not None:
            answer = ask(question)
            self._check("remark", answer, empty=True)
        if answer.strip():
            handle = self.memory.user(user, owner)
            owner = handle.owner
            says = {"instruction": task["instruction"], "question": question, "remark": answer}
            with suppress(*UNLEARNT, MemoryLimitError):
                self._take_in(handle, f"{key}/{ANSWER}", ANSWER, says, _used(retrieved, cues))
        number = self._choose(task, cues, question, answer)
        option = task["options"][number]
        return ChosenAction(key, task["instruction"], number, option, cues, retrieved, question, answer, owner)

    def observe_feedback(self, user: str, action: ChosenAction, remark: str) -> bool:
        """Learn from what the user says of an action. The same remark again changes nothing.

        The remark is safe in the event log before anything is derived from it. When this raises, `catch_up` derives
        what is missing, or sets the remark aside where that fails too often.

        Args:
            user: whose round it was.
            action: as `act` gave it.
            remark: f_post.

        Returns:
            Whether this agent learns from feedback after actions at all (`post` and `both`).

        Raises:
            RepeatedKeyError: there was another remark on this action before.
            ConsentError: the user has not allowed that anything is stored.
            ForgottenUserError: the user was forgotten after the action.
            ReplyError: nothing can be derived from the remark now.
            FineGrainedError: as for `act`.
        """
        if self._after:
            self._check("remark", remark)
            says = {"instruction": action.instruction, "action": action.option, "remark": remark}
            used = _used(action.retrieved, action.cues)
            self._take_in(self.memory.user(user, action.owner), f"{action.key}/{FEEDBACK}", FEEDBACK, says, used)
        return self._after

    def _retrieve(self, handle: UserHandle, task: dict[str, Any]) -> list[Note]:
        """m_t: the k notes nearest to instruction and options."""
        if not (self._before or self._after):
            return []
        query = "\n".join([task["instruction"], *task["options"]])
        return nearest_encoded(self._index, handle, self._encoder, query, self._k, _texts, fields=_FIELDS)

    def _distil(self, task: dict[str, Any], notes: Sequence[Note]) -> str:
        """What of the notes bears on this round; empty for nothing. The notes themselves where that cannot be said."""
        if not notes:
            return ""
        texts = [str(note.body["text"]) for note in notes]
        try:
            return str(self._ask_for("distil", {**task, "notes": texts}, self._texts("cues"))["cues"])
        except ReplyError:
            return self._shortened(texts)

    def _shortened(self, texts: Sequence[str]) -> str:
        """The first of some texts, a line each, as many as cues may be long."""
        lengths = accumulate(len(text) + 1 for text in texts)
        return "\n".join(text for text, end in zip(texts, lengths, strict=True) if end - 1 <= self._longest_note)

    def _question(self, task: dict[str, Any], cues: str) -> str:
        """q_t; empty where what is known is enough, or where no decision can be read."""
        fields: dict[str, Field] = {
            "decision": Choice(("act", "ask")),
            "question": Text(self._longest_note, optional=True),
        }
        try:
            reply = self._ask_for("decide", {**task, "cues": cues}, ReplySchema(fields, _asks_something))
        except ReplyError:
            return ""
        return reply["question"] if reply["decision"] == "ask" else ""

    def _choose(self, task: dict[str, Any], cues: str, question: str, answer: str) -> int:
        """π_act(I_t, O_t, m_t, q_t, f_pre): the option's number, from 0."""
        exchange = {"question": question, "answer": answer} if answer.strip() else {}
        numbered = [f"{number}. {option}" for number, option in enumerate(task["options"], start=1)]
        data = {**task, "options": numbered, "cues": cues, **exchange}
        choice = Choice(tuple(str(number + 1) for number in range(len(numbered))))
        return int(self._ask_for("choose", data, ReplySchema({"choice": choice}))["choice"]) - 1

    def _take_in(self, handle: UserHandle, key: str, kind: str, says: dict[str, Any], used: dict[str, Any]) -> None:
        """M_t → M_{t+1}: the remark is recorded, then what follows from it is derived and written at once."""
        event = handle.record(key, kind, says, used)
        self._take_up(handle, event)

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        """Detect, summarise, integrate (section 3.4)."""
        salient = ReplySchema({"salient": Choice(("yes", "no"))})
        if self._ask_for("salient", event.body, salient)["salient"] == "no":
            return []
        summary = str(self._ask_for("summarise", event.body, self._texts("note"))["note"])
        if not summary:
            return []
        near = nearest_encoded(self._index, handle, self._encoder, summary, self._k, _texts, self._similarity, _FIELDS)
        return [self._integrate(event, summary, near)]

    def _integrate(self, event: Event, summary: str, near: Sequence[Note]) -> NoteChange:
        """A new note, or one note changed: the language model names it by number, and no other can be touched."""
        if not near:
            return self._note(event.key, summary)
        existing = [f"{number}. {note.body['text']}" for number, note in enumerate(near, start=1)]
        text = Text(self._longest_note, optional=True)
        fields: dict[str, Field] = {"operation": Choice(("add", "merge", "replace")), "number": text, "note": text}

        def problem(reply: Mapping[str, Any]) -> str | None:
            if reply["operation"] != "add" and _number(reply["number"], len(near)) is None:
                return f"number: expected one from 1 to {len(near)}"
            return "note: expected the merged text" if reply["operation"] == "merge" and not reply["note"] else None

        reply = self._ask_for("integrate", {"note": summary, "existing": existing}, ReplySchema(fields, problem))
        number = _number(reply["number"], len(near))
        if reply["operation"] == "add" or number is None:
            return self._note(event.key, summary)
        target = near[number - 1]
        return self._note(target.key, summary if reply["operation"] == "replace" else reply["note"], target.version)

    def _texts(self, field: str) -> ReplySchema:
        return ReplySchema({field: Text(self._longest_note)})

    def _note(self, key: str, text: str, version: int = 0) -> NoteChange:
        vector = to_bytes(self._encoder.encode([text])[0])
        return NoteChange(key, {"encoder": self._encoder.identity, "text": text}, vector, version)


def _texts(handle: UserHandle, notes: Sequence[Note]) -> list[str]:
    return [str(note.body["text"]) for note in notes]


def _used(retrieved: Sequence[str], cues: str) -> dict[str, Any]:
    """What an action rests on, as its events say it."""
    return {"notes": list(retrieved), "cues": cues}


def _asks_something(reply: Mapping[str, Any]) -> str | None:
    asks = reply["decision"] == "ask" and not reply["question"]
    return "question: expected one where the decision is to ask" if asks else None


def _number(text: str, count: int) -> int | None:
    """The number from 1 to `count` that a text begins with."""
    begins = re.match(r"\D{0,3}(\d+)", text)
    return int(begins[1]) if begins and len(begins[1]) < 9 and 1 <= int(begins[1]) <= count else None
