"""CORESET: of what the user said, a consistent set is shown to the language model (Sun et al., section 5).

The agents of CORESET's conversations have names: `coreset_recency_exact` is algorithm 1 with exact conflicts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.wrappers import AnswerOwner, drop_kept_answers
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.personalization.learners.conversation import (
    QUESTION_TASK,
    ChainOfThought,
    ConversationAgent,
    FullMemory,
    HoldingRemarks,
    InContext,
    PossibleAnswers,
    Scratchpad,
    SummarisedMemory,
    WithoutMemory,
)
from finegrained_rlhf.personalization.retrieval import ContextEncoder, HashedWords, nearest_encoded, to_bytes
from finegrained_rlhf.personalization.selection import (
    LARGEST_EXACT,
    ConflictCheck,
    CoresetSelection,
    EmbeddedConflicts,
    ExactConflicts,
    FeedbackRemark,
    ModelConflicts,
    SourceDocument,
    greedy_coreset,
    largest_coreset,
    recency_coreset,
)
from finegrained_rlhf.personalization.store.protocol import Event, MemoryStore, Note, NoteChange, UserHandle

SELECTIONS = ("recency", "greedy", "largest")
"""Algorithm 1, algorithm 2 as printed, and the objective that the paper states for the latter, exactly."""


class Coreset(ConversationAgent):
    """Retrieves remarks, takes a consistent set of them, and answers by that.

    Args:
        memory: of users.
        llm: a language model.
        conflicts: hasConflict.
        selection: one of `SELECTIONS`.
        k: remarks that are retrieved, those most like the question; None retrieves all.
        least: the lowest cosine of a remark that is retrieved; None takes any.
        encoder: of questions and remarks; words by default.
        limit: of the retrieved remarks, the newest so many are looked at: each may cost a question (`recency`,
            `greedy`) or double the questions (`largest`). None: 16 for `largest` and where a language model looks for
            conflicts, else all.
        **settings: as for every `ConversationAgent`.

    Raises:
        ConfigError: no such selection, k or `limit` below 1, or `least` outside −1 to 1.
    """

    def __init__(
        self,
        memory: MemoryStore,
        llm: TextGenerator,
        conflicts: ConflictCheck,
        selection: str = "recency",
        k: int | None = None,
        least: float | None = None,
        encoder: ContextEncoder | None = None,
        limit: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(memory, llm, **settings)
        if selection not in SELECTIONS:
            raise ConfigError(f"selection: expected one of {', '.join(SELECTIONS)}, got {selection!r}")
        for name, value in (("k", k), ("limit", limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: expected at least 1, got {value}")
        if least is not None and not -1.0 <= least <= 1.0:
            raise ConfigError(f"least: expected a cosine from -1 to 1, got {least}")
        self._conflicts, self._selection, self._k = conflicts, selection, k
        self._least = -math.inf if least is None else least
        costly = selection == "largest" or getattr(conflicts, "asks_model", False)
        self._limit = limit or (LARGEST_EXACT if costly else sys.maxsize)
        self._encoder = encoder or HashedWords()

    def _answer(
        self, handle: UserHandle, documents: Sequence[SourceDocument], question: str, key: str
    ) -> PossibleAnswers:
        notes = self._retrieve(handle, question)  # lines 3 and 4
        remarks = [FeedbackRemark(**note.body["remark"]) for note in notes]
        selection = self._select(remarks, documents, key)  # lines 5 to 13
        shown = {"remarks": [remarks[i].text for i in selection.chosen]}
        answers, _ = self._possible("answer_remarks", documents, question, shown)
        return PossibleAnswers(
            key,
            question,
            answers,
            rests_on=tuple(notes[i].key for i in selection.chosen),
            satisfiable=selection.satisfiable,
        )

    def _retrieve(self, handle: UserHandle, question: str) -> list[Note]:
        """The remarks that bear on a question, the oldest first."""
        k = sys.maxsize if self._k is None else self._k
        near = nearest_encoded(self._index, handle, self._encoder, question, k, _texts, self._least, ("remark",))
        return sorted(near, key=lambda note: note.event)

    def _drop_answers(self, owner: AnswerOwner) -> None:
        super()._drop_answers(owner)
        drop_kept_answers(self._conflicts, owner)

    def _select(
        self, remarks: Sequence[FeedbackRemark], documents: Sequence[SourceDocument], key: str
    ) -> CoresetSelection:
        older = max(0, len(remarks) - self._limit)
        selection = self._consistent(remarks[older:], documents)
        return CoresetSelection(tuple(older + i for i in selection.chosen), selection.satisfiable)

    def _consistent(self, remarks: Sequence[FeedbackRemark], documents: Sequence[SourceDocument]) -> CoresetSelection:
        def has_conflict(chosen: Sequence[FeedbackRemark], remark: FeedbackRemark) -> bool:
            return self._conflicts.has_conflict(chosen, remark, documents)

        if self._selection == "recency":
            return recency_coreset(remarks, has_conflict)
        if self._selection == "greedy":
            return greedy_coreset(remarks, has_conflict)
        return largest_coreset(remarks, has_conflict, len(remarks))

    def _derive(self, handle: UserHandle, event: Event) -> list[NoteChange]:
        """The remark of a turn, found again by its words."""
        remark = event.body["remark"]
        if remark is None:
            return []
        vector = to_bytes(self._encoder.encode([remark["text"]])[0])
        return [NoteChange(event.key, {"encoder": self._encoder.identity, "remark": remark}, vector)]


def _texts(handle: UserHandle, notes: Sequence[Note]) -> list[str]:
    return [str(note.body["remark"]["text"]) for note in notes]


class RandomWindow(Coreset):
    """A control: as many successive remarks as `recency` takes, from anywhere, by a hash of the turn."""

    def _select(
        self, remarks: Sequence[FeedbackRemark], documents: Sequence[SourceDocument], key: str
    ) -> CoresetSelection:
        selection = super()._select(remarks, documents, key)
        length = len(selection.chosen)
        begin = stable_hash("random window", key, len(remarks)) % (len(remarks) - length + 1)
        return CoresetSelection(tuple(range(begin, begin + length)), selection.satisfiable)


CONFLICT_CHECKS = ("model", "embedding", "exact")
"""Who looks for conflicts: the language model, vectors, the documents' facts."""
_PLAIN: Mapping[str, type[ConversationAgent]] = {
    "no_feedback": WithoutMemory,
    "icl": InContext,
    "cot": ChainOfThought,
    "full_memory": FullMemory,
    "scratchpad": Scratchpad,
    "summarised_memory": SummarisedMemory,
}
CORESETS = tuple(f"coreset_{selection}_{check}" for selection in SELECTIONS for check in CONFLICT_CHECKS)
"""Every selection with every check."""
DEFAULT_AGENTS = (
    *_PLAIN,
    *("coreset_recency_model", "coreset_recency_embedding", "coreset_recency_exact"),
    *("coreset_greedy_model", "coreset_greedy_exact", "coreset_largest_exact"),
    *("random_window", "holding_remarks"),
)
"""The paper's agents; `no_feedback` and `random_window` are controls, `holding_remarks` is a ceiling of selection."""
CONVERSATION_AGENTS = (*_PLAIN, *CORESETS, "random_window", "holding_remarks")
"""All names."""


@dataclass(frozen=True)
class ConversationSettings:
    """What agents are made with.

    Attributes:
        k: remarks that CORESET retrieves; None retrieves all.
        threshold: the lowest cosine of remarks that do not contradict each other, for `embedding`.
        with_documents: whether the language model is shown the documents when it looks for a conflict.
        encoder: of questions and remarks; None is words.
        task: of the agent, in a sentence for the language model.
    """

    k: int | None = None
    threshold: float = 0.5
    with_documents: bool = True
    encoder: ContextEncoder | None = None
    task: str = QUESTION_TASK


def check_conversation_agent(name: str) -> None:
    """Refuse a name that no agent has.

    Raises:
        ConfigError: it is one.
    """
    if name not in CONVERSATION_AGENTS:
        raise ConfigError(f"agents: expected some of {', '.join(CONVERSATION_AGENTS)}, got {name!r}")


def make_conversation_agent(
    name: str,
    memory: MemoryStore,
    llm: TextGenerator,
    holding: Callable[[str], Sequence[str]],
    settings: ConversationSettings,
) -> ConversationAgent:
    """The agent of a name.

    Args:
        name: one that `check_conversation_agent` takes.
        memory: that it alone uses.
        llm: a language model.
        holding: the keys of the turns whose remarks hold, by a turn's key, which `holding_remarks` alone is given.
        settings: of all agents.

    Raises:
        ConfigError: no such agent, or a setting outside its range.
    """
    check_conversation_agent(name)
    if name in _PLAIN:
        return _PLAIN[name](memory, llm, task=settings.task)
    if name == "holding_remarks":
        return HoldingRemarks(memory, llm, holding, task=settings.task)
    kind = RandomWindow if name == "random_window" else Coreset
    selection, check = ("recency", "exact") if name == "random_window" else name.split("_")[1:]
    conflicts = _conflicts(check, llm, settings)
    return kind(memory, llm, conflicts, selection, settings.k, encoder=settings.encoder, task=settings.task)


def _conflicts(check: str, llm: TextGenerator, settings: ConversationSettings) -> ConflictCheck:
    if check == "exact":
        return ExactConflicts()
    if check == "embedding":
        return EmbeddedConflicts(settings.encoder or HashedWords(), settings.threshold)
    return ModelConflicts(llm, settings.with_documents)
