"""Agents that answer questions which several documents can answer, and hear from the user which entity is meant.

The baselines of Sun et al., *Resolving Ambiguity through Personalization in Multi-turn LLM Conversations*, section 6:
they differ in what of the conversation their language model is shown.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.schema import Field, ReplySchema, Text, Texts
from finegrained_rlhf.core.generation.wrappers import asked_for
from finegrained_rlhf.personalization.learners.base import LEARN_TRIES, MemoryAgent
from finegrained_rlhf.personalization.selection import FeedbackRemark, SourceDocument
from finegrained_rlhf.personalization.store.protocol import Event, MemoryStore, NoteChange, UserHandle

TURN = "turn"
"""The kind of event that these agents write."""
QUESTION_TASK = "Answer the user's question. Several entities may have the same name: the user means one of them."


@dataclass(frozen=True)
class PossibleAnswers:
    """The answers a_t to a question, with all that must be known when the user says something of them.

    Attributes:
        key: idempotency key of the turn.
        question: q_t.
        answers: every one that the agent holds possible, each once.
        reasoning: that came before them; empty for most agents.
        rests_on: keys of the turns whose remarks the language model was shown, the oldest first.
        satisfiable: False where the newest remark contradicts all documents, so that no set with it is consistent; True
            for agents that do not look.
        owner: whose turn it is, as for a `Draft`.
    """

    key: str
    question: str
    answers: tuple[str, ...]
    reasoning: str = ""
    rests_on: tuple[str, ...] = ()
    satisfiable: bool = True
    owner: int = 0


class ConversationAgent(MemoryAgent):
    """An agent of the conversation protocol of Sun et al., section 4.1: a question, answers, a remark or none.

    Args:
        memory: of users; one conversation is one user's.
        llm: a language model, for everything that is asked.
        task: of the agent, in a sentence for the language model.
        longest_text: most characters of all documents together, of a question, of a remark and of a reply; a longer one
            is refused.
        learn_tries: how often a turn is learnt from before it is set aside.
    """

    kinds = (TURN,)

    def __init__(
        self,
        memory: MemoryStore,
        llm: TextGenerator,
        *,
        task: str = QUESTION_TASK,
        longest_text: int = 100_000,
        learn_tries: int = LEARN_TRIES,
    ) -> None:
        super().__init__(memory, llm, task=task, longest_text=longest_text, learn_tries=learn_tries)

    def answer(
        self, user: str, documents: Sequence[SourceDocument], question: str, key: str | None = None
    ) -> PossibleAnswers:
        """Every answer that is possible by what is known. Nothing is written.

        Args:
            user: who it is, from the caller's own login.
            documents: D, in the order in which the language model reads them.
            question: q_t.
            key: of the turn, unique for the user; a random one by default.

        Raises:
            ConfigError: there is no document.
            ReplyError: the language model gives no answers to this question.
            FineGrainedError: the language model is out of reach, or a text is refused.
        """
        self._check_question(documents, question)
        handle = self.memory.reader(user)
        with asked_for(handle.answer_owner):
            answered = self._answer(handle, documents, question, uuid.uuid4().hex if key is None else key)
        return replace(answered, owner=handle.owner)

    def pick(self, documents: Sequence[SourceDocument], question: str) -> str:
        """One answer, by the documents alone. Nothing is written.

        Raises:
            ConfigError: there is no document.
            ReplyError: as for `answer`.
            FineGrainedError: as for `answer`.
        """
        self._check_question(documents, question)
        data = {"documents": [one.text for one in documents], "question": question}
        return self._text("answer_one", data, "answer")

    def observe_turn(self, user: str, answered: PossibleAnswers, remark: FeedbackRemark | None = None) -> None:
        """Take in a turn that is over, and what the user said of its answers. The same turn again changes nothing.

        The turn is safe in the event log before anything is derived from it. When this raises, `catch_up` derives what
        is missing, or sets the turn aside where that fails too often.

        Args:
            user: whose turn it was.
            answered: as `answer` gave it.
            remark: f_t; None where the user said nothing.

        Raises:
            RepeatedKeyError: the turn came back before with another remark.
            ConsentError: the user has not allowed that anything is stored.
            ForgottenUserError: the user was forgotten after the question was answered.
            ReplyError: nothing can be derived from the turn now.
            FineGrainedError: as for `answer`.
        """
        if remark is not None:
            self._check("remark", remark.text)
        handle = self.memory.user(user, answered.owner)
        body = {
            "question": answered.question,
            "reasoning": answered.reasoning,
            "answers": list(answered.answers),
            "remark": None if remark is None else asdict(remark),
        }
        event = handle.record(answered.key, TURN, body)
        self._take_up(handle, event)

    @abstractmethod
    def _answer(
        self, handle: UserHandle, documents: Sequence[SourceDocument], question: str, key: str
    ) -> PossibleAnswers:
        """The answers to a question."""

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        """The notes that follow from a turn; none for an agent that keeps none."""
        return []

    def _possible(
        self,
        template: str,
        documents: Sequence[SourceDocument],
        question: str,
        shown: Mapping[str, Any],
        reasoning: bool = False,
    ) -> tuple[tuple[str, ...], str]:
        """The answers in a reply, each once, and the reasoning before them, where it is asked for."""
        before: dict[str, Field] = {"reasoning": Text(self._longest_text)} if reasoning else {}
        schema = ReplySchema({**before, "answers": Texts(self._longest_text)})
        data = {"documents": [one.text for one in documents], **shown, "question": question}
        reply = self._ask_for(template, data, schema)
        return tuple(dict.fromkeys(reply["answers"])), str(reply.get("reasoning", ""))

    def _text(self, template: str, data: Mapping[str, Any], field: str) -> str:
        """The one text of a reply."""
        return str(self._ask_for(template, data, ReplySchema({field: Text(self._longest_text)}))[field])

    def _check_question(self, documents: Sequence[SourceDocument], question: str) -> None:
        if not documents:
            raise ConfigError("documents: expected at least one")
        self._check("question", question)
        self._check("documents", "\n".join(one.text for one in documents))


class WithoutMemory(ConversationAgent):
    """Looks at the documents alone: what is reached without any remark."""

    def _answer(
        self, handle: UserHandle, documents: Sequence[SourceDocument], question: str, key: str
    ) -> PossibleAnswers:
        return PossibleAnswers(key, question, self._possible("answer_remarks", documents, question, {"remarks": []})[0])


class InContext(ConversationAgent):
    """Shows the whole conversation: questions, answers and remarks."""

    template, reasons = "answer_history", False

    def _answer(
        self, handle: UserHandle, documents: Sequence[SourceDocument], question: str, key: str
    ) -> PossibleAnswers:
        turns = handle.events(TURN)
        history = [self._shown(turn.body) for turn in turns]
        shown = {"history": history}
        answers, reasoning = self._possible(self.template, documents, question, shown, self.reasons)
        remarked = tuple(turn.key for turn in turns if turn.body["remark"] is not None)
        return PossibleAnswers(key, question, answers, reasoning, remarked)

    def _shown(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        remark = turn["remark"]
        remark_field = {} if remark is None else {"remark": remark["text"]}
        return {"question": turn["question"], "answers": turn["answers"], **remark_field}


class ChainOfThought(InContext):
    """Shows the whole conversation, earlier reasoning too, and lets the language model reason before it answers."""

    template, reasons = "answer_chain", True

    def _shown(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        shown = super()._shown(turn)
        return {"question": shown.pop("question"), "reasoning": turn["reasoning"], **shown}


class FullMemory(ConversationAgent):
    """Shows every remark, in their order, whether or not they contradict each other (unfiltered memory)."""

    def _answer(
        self, handle: UserHandle, documents: Sequence[SourceDocument], question: str, key: str
    ) -> PossibleAnswers:
        remarked = [turn for turn in handle.events(TURN) if turn.body["remark"] is not None]
        turns = self._taken(remarked, key)
        shown = {"remarks": [turn.body["remark"]["text"] for turn in turns]}
        answers, _ = self._possible("answer_remarks", documents, question, shown)
        return PossibleAnswers(key, question, answers, rests_on=tuple(turn.key for turn in turns))

    def _taken(self, turns: Sequence[Event], key: str) -> Sequence[Event]:
        """The turns whose remarks are shown."""
        return turns


class HoldingRemarks(FullMemory):
    """A ceiling for every selection, s*: shows the remarks that hold now, which the caller knows and no agent can.

    Args:
        memory: of users.
        llm: a language model.
        holding: the keys of the turns whose remarks hold, by the key of the turn that is to be answered.
        **settings: as for every `ConversationAgent`.
    """

    def __init__(
        self, memory: MemoryStore, llm: TextGenerator, holding: Callable[[str], Sequence[str]], **settings: Any
    ) -> None:
        super().__init__(memory, llm, **settings)
        self._holding = holding

    def _taken(self, turns: Sequence[Event], key: str) -> Sequence[Event]:
        holding = set(self._holding(key))
        return [turn for turn in turns if turn.key in holding]


class _Notebook(ConversationAgent):
    """Shows one note that the language model itself keeps."""

    name: str

    def _answer(
        self, handle: UserHandle, documents: Sequence[SourceDocument], question: str, key: str
    ) -> PossibleAnswers:
        note = handle.note(self.name)
        notes = "" if note is None else str(note.body["text"])
        return PossibleAnswers(key, question, self._possible("answer_notes", documents, question, {"notes": notes})[0])

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        note = handle.note(self.name)
        before, version = ("", 0) if note is None else (str(note.body["text"]), note.version)
        text = self._rewritten(before, event.body)
        if text == before:
            return []
        self._check(self.name, text, empty=True)
        return [NoteChange(self.name, {"text": text}, None, version)]

    @abstractmethod
    def _rewritten(self, before: str, turn: Mapping[str, Any]) -> str:
        """What the note says after a turn."""


class Scratchpad(_Notebook):
    """Lets the language model write a line after each turn, and shows it all lines (Nye et al. 2021)."""

    name = "scratchpad"

    def _rewritten(self, before: str, turn: Mapping[str, Any]) -> str:
        remark = "" if turn["remark"] is None else turn["remark"]["text"]
        data = {"scratchpad": before, "question": turn["question"], "answers": turn["answers"], "remark": remark}
        line = self._text("scratchpad", data, "note")
        return f"{before}\n{line}".strip()


class SummarisedMemory(_Notebook):
    """Lets the language model write a summary of the remarks anew after each, and shows it that (Park et al. 2023)."""

    name = "summary"

    def _rewritten(self, before: str, turn: Mapping[str, Any]) -> str:
        if turn["remark"] is None:
            return before
        data = {"summary": before, "remark": turn["remark"]["text"]}
        return self._text("summarise_memory", data, "summary")
