"""An assistant for a folder of documents: rewrite, search, judge sentences, read, cite; and its sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.inscit.asking.evidence import Candidate, EvidenceScorer
from finegrained_rlhf.inscit.asking.measures import SUPPORTED, grounded
from finegrained_rlhf.inscit.asking.readers import QuotingReader, Reader, Written
from finegrained_rlhf.inscit.asking.records import (
    NOT_THERE,
    AnswerSentence,
    AnswerType,
    Citation,
    DocumentAnswer,
    Looked,
    Searched,
    citations_of,
    require_question,
    shortened,
)
from finegrained_rlhf.inscit.conversation import EvidencePassage
from finegrained_rlhf.inscit.documents.folder import DocumentIndex
from finegrained_rlhf.inscit.documents.passages import DocumentPassage
from finegrained_rlhf.retrieval.fusion import reciprocal_rank_fusion
from finegrained_rlhf.retrieval.protocol import Retriever

if TYPE_CHECKING:
    from finegrained_rlhf.inscit.assistant import SelectsEvidence

Rewriter = Callable[[Sequence[str]], str]
"""From a dialogue, the user first and last, to its last question so that it stands by itself."""
Groundedness = Callable[[str, Sequence[str]], float]
"""How far texts support a sentence, 0 to 1."""
_REFERS = re.compile(r"\b(?:it|its|they|them|their|he|him|his|she|her|this|that|these|those|there|one)\b", re.I)
_CANDIDATES = 12  # sentences that a reader is given
_MEANT = 3  # documents that a clarification names


@dataclass
class Turn:
    """A question of a session and its answer; the passages that it cites are looked at again in the next turn."""

    question: str
    answer: DocumentAnswer


@dataclass
class DocumentAssistant:
    """Answers questions from a folder of documents.

    Attributes:
        index: of the folder.
        retrievers: by name, over the passages of the index; their rankings are fused by reciprocal rank.
        scorer: judges sentences; its weights have the threshold.
        reader: answers.
        rewriter: makes a question of a dialogue stand by itself; None: one that refers back is asked about the document
            that was cited last.
        identifier: a trained DIALKI that selects the evidence among the most probable sentences, where any is probable
            enough; None: they rank as the scorer says.
        groundedness: how far what a sentence cites supports it; a reward of yours, or the measure without a model.
        passages: that are looked at.
        depth: passages of each retriever's ranking that are fused.
    """

    index: DocumentIndex
    retrievers: Mapping[str, Retriever]
    scorer: EvidenceScorer
    reader: Reader = field(default_factory=QuotingReader)
    rewriter: Rewriter | None = None
    identifier: SelectsEvidence | None = None
    groundedness: Groundedness = grounded
    passages: int = 8
    depth: int = 30
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.retrievers or self.passages < 1 or self.depth < 1:
            raise ConfigError("expected a retriever, and passages and depth of at least 1")

    def ask(self, question: str, turns: Sequence[Turn] = ()) -> DocumentAnswer:
        """Answer a question. One is answered at a time, whoever asks.

        Args:
            question: of the user.
            turns: what was asked and answered before, oldest first.

        Raises:
            DataError: the question is blank, too long, or no text.
        """
        question = require_question(question)
        with self._lock:
            return self._answer(question, turns)

    async def ask_async(self, question: str, turns: Sequence[Turn] = ()) -> DocumentAnswer:
        """As `ask`, in a thread, so that the loop goes on."""
        return await asyncio.to_thread(self.ask, question, turns)

    def session(self) -> Session:
        """A conversation that begins now."""
        return Session(self)

    def _answer(self, question: str, turns: Sequence[Turn]) -> DocumentAnswer:
        dialogue = [text for turn in turns for text in (turn.question, turn.answer.answer)] + [question]
        alone = self._alone(question, dialogue, turns)
        found = self.search(alone, turns)
        candidates = self.scorer.candidates(alone, found)
        threshold = self.scorer.weights.threshold
        looked: dict[str, Looked] = {}
        for one in candidates:
            looked.setdefault(one.passage.id, Looked(one.passage, one.probability, one.span))
        searched = Searched(alone, tuple(self.retrievers), tuple(looked.values()), threshold)
        kind, written = self._read(alone, dialogue, turns, candidates)
        if kind == "not in these documents":
            return DocumentAnswer(question, kind, (AnswerSentence(NOT_THERE, (), 1.0, True),), (), searched)
        cited, numbers = citations_of([[_citation(one) for one in rests] for _, rests in written])
        sentences = []
        for (text, rests), places in zip(written, numbers, strict=True):
            whole = [f"{': '.join(one.passage.titles)}: {one.text}" for one in rests]
            score = 1.0 if kind == "clarification" else self.groundedness(text, whole) if whole else 0.0
            sentences.append(AnswerSentence(text, places, score, score >= SUPPORTED))
        return DocumentAnswer(question, kind, tuple(sentences), cited, searched)

    def _alone(self, question: str, dialogue: Sequence[str], turns: Sequence[Turn]) -> str:
        if not turns:
            return question
        if self.rewriter is not None:
            return self.rewriter(dialogue).strip() or question
        cited = [one for turn in turns for one in turn.answer.citations]
        if cited and cited[-1].titles and _REFERS.search(question):
            return f"{cited[-1].titles[0]}: {question}"
        return question

    def search(self, question: str, turns: Sequence[Turn] = ()) -> list[DocumentPassage]:
        """The passages to look at: those that retrievers find, and behind them those that were cited before."""
        runs = [{"q": retriever.search([question], self.depth)[0]} for retriever in self.retrievers.values()]
        fused = reciprocal_rank_fusion(runs, k=self.passages).get("q", [])
        found = {hit.id: self.index[hit.id] for hit in fused}
        cited = {(one.file, one.start) for turn in turns for one in turn.answer.citations}
        for turn in reversed(turns):
            for looked in turn.answer.searched.passages:
                one = looked.passage
                if any(file == one.file and one.start <= start < one.end for file, start in cited):
                    found.setdefault(one.id, one)
        return list(found.values())[: 2 * self.passages]

    def _read(
        self, question: str, dialogue: Sequence[str], turns: Sequence[Turn], candidates: Sequence[Candidate]
    ) -> tuple[AnswerType, tuple[Written, ...]]:
        likely = [one for one in candidates if one.probability >= self.scorer.weights.threshold]
        if likely and self.identifier is not None:
            candidates = likely = self._identified(self.identifier, dialogue, turns, candidates)
        if not likely:
            return "not in these documents", ()
        if self.identifier is None and len(meant := self._meant(likely)) > 1:
            names = [shortened(": ".join(one.passage.titles), 80) for one in meant]
            text = f"Which do you mean: {'; '.join(names[:-1])} or {names[-1]}?"
            return "clarification", ((text, tuple(meant)),)
        reading = self.reader.read(dialogue, question, candidates[:_CANDIDATES])
        return reading.type, reading.sentences

    def _identified(
        self,
        identifier: SelectsEvidence,
        dialogue: Sequence[str],
        turns: Sequence[Turn],
        candidates: Sequence[Candidate],
    ) -> list[Candidate]:
        """What DIALKI selects among the most probable sentences, the best first; each is a passage of one span."""
        by_id = {f"{one.passage.file}:{one.span[0]}": one for one in candidates[:_CANDIDATES]}
        shown = [EvidencePassage(id, one.text, one.passage.titles) for id, one in by_id.items()]
        earlier = [
            [EvidencePassage(f"{one.file}:{one.start}", one.text, one.titles) for one in turn.answer.citations]
            for turn in turns
        ]
        return [by_id[id] for id in identifier.select(dialogue, earlier, shown)]

    def _meant(self, likely: Sequence[Candidate]) -> list[Candidate]:
        """The best sentence and those of other documents that are as good and say something else."""
        best = likely[0]
        meant = {best.passage.file: best}
        for one in likely[1:]:
            near = one.log_odds >= best.log_odds - self.scorer.weights.close
            if near and " ".join(one.text.split()) not in [" ".join(m.text.split()) for m in meant.values()]:
                meant.setdefault(one.passage.file, one)
        titles = {one.passage.titles for one in meant.values()}
        return list(meant.values())[:_MEANT] if len(titles) == len(meant) else [best]


@dataclass
class Session:
    """A conversation with its history; what earlier answers cite is looked at again.

    Attributes:
        assistant: that answers.
        turns: so far, oldest first.
    """

    assistant: DocumentAssistant
    turns: list[Turn] = field(default_factory=list)

    def ask(self, question: str) -> DocumentAnswer:
        """Answer the next question. Raises what `DocumentAssistant.ask` does."""
        answer = self.assistant.ask(question, self.turns)
        self.turns.append(Turn(question, answer))
        return answer

    async def ask_async(self, question: str) -> DocumentAnswer:
        """As `ask`, in a thread, so that the loop goes on."""
        return await asyncio.to_thread(self.ask, question)


def _citation(candidate: Candidate) -> Citation:
    passage, (start, end) = candidate.passage, candidate.span
    return Citation(passage.file, start, end, candidate.text, passage.titles)
