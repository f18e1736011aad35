"""CORESET: of what the user said, a consistent set is shown to the language model (Sun et al., section 5)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.wrappers import AnswerOwner, drop_kept_answers
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.personalization.learners.conversation import ConversationAgent, PossibleAnswers
from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder, HashedWords
from finegrained_rlhf.personalization.retrieval.index import nearest_encoded
from finegrained_rlhf.personalization.retrieval.nearest import to_bytes
from finegrained_rlhf.personalization.selection import (
    LARGEST_EXACT,
    ConflictCheck,
    CoresetSelection,
    FeedbackRemark,
    SourceDocument,
    greedy_coreset,
    largest_coreset,
    recency_coreset,
)
from finegrained_rlhf.personalization.store.protocol import MemoryStore, UserHandle
from finegrained_rlhf.personalization.store.records import Event, Note, NoteChange

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
        near = nearest_encoded(self._index, handle, self._encoder, question, k, _texts, self._least)
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
