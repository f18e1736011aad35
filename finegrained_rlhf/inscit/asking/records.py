"""What an answer from documents is: its sentences, what each rests on, and what was looked at to find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finegrained_rlhf.core.checks import require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.inscit.documents.passages import DocumentPassage
from finegrained_rlhf.inscit.documents.readers import printable

AnswerType = Literal["answer", "clarification", "not in these documents"]
NOT_THERE = "This is not in these documents."
"""What is said where no sentence answers the question."""
LONGEST_QUESTION = 2_000
"""Characters of a question at most."""


def require_question(question: object) -> str:
    """A question as it can be asked.

    Raises:
        DataError: it is blank, too long, or no text.
    """
    text = require_text(question, "question")
    if len(text) > LONGEST_QUESTION:
        raise DataError(f"has {len(text):,} characters, more than {LONGEST_QUESTION:,}", field="question")
    return text.strip()


@dataclass(frozen=True)
class Citation:
    """A place in a document.

    Attributes:
        file: relative to the folder.
        start: its first character in the document's text.
        end: behind its last one.
        text: what stands there, to the letter.
        titles: of the document and the headings above.
    """

    file: str
    start: int
    end: int
    text: str
    titles: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"file": self.file, "start": self.start, "end": self.end, "text": self.text}


@dataclass(frozen=True)
class AnswerSentence:
    """A sentence of an answer.

    Attributes:
        text: it.
        citations: numbers of citations of the answer that it rests on.
        grounded: how far what it cites supports it, 0 to 1 (`measures.grounded`).
        supported: whether that is enough.
    """

    text: str
    citations: tuple[int, ...]
    grounded: float
    supported: bool


@dataclass(frozen=True)
class Looked:
    """A passage that was looked at.

    Attributes:
        passage: it.
        probability: that its best sentence answers.
        best: the place of that sentence.
    """

    passage: DocumentPassage
    probability: float
    best: tuple[int, int]

    @property
    def citation(self) -> Citation:
        """Its best sentence as a place."""
        one = self.passage
        return Citation(one.file, *self.best, one.sentence(self.best), one.titles)

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        one = self.passage
        place = {"file": one.file, "titles": list(one.titles), "start": one.start, "end": one.end}
        return {**place, "probability": round(self.probability, 4), "best": list(self.best)}


@dataclass(frozen=True)
class Searched:
    """How an answer was looked for.

    Attributes:
        question: that was searched for: the user's, or what it was rewritten to.
        retrievers: whose rankings were fused.
        passages: that were looked at, the best first.
        threshold: the probability from which on a question is answered.
    """

    question: str
    retrievers: tuple[str, ...]
    passages: tuple[Looked, ...]
    threshold: float

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        looked = [one.row() for one in self.passages]
        about = {"question": self.question, "retrievers": list(self.retrievers)}
        return {**about, "threshold": self.threshold, "passages": looked}


@dataclass(frozen=True)
class DocumentAnswer:
    """An answer.

    Attributes:
        question: of the user.
        type: what kind of answer it is.
        sentences: of the answer, in order; of a refusal and a clarification one, which cites nothing or what is meant.
        citations: all places that are cited, each once.
        searched: how it was looked for.
    """

    question: str
    type: AnswerType
    sentences: tuple[AnswerSentence, ...]
    citations: tuple[Citation, ...]
    searched: Searched

    @property
    def answer(self) -> str:
        """Its words."""
        return " ".join(sentence.text for sentence in self.sentences)

    def row(self) -> dict[str, Any]:
        """Ready for JSON: `question`, `answer`, `type`, `citations`, `sentences` and `searched`."""
        sentences = [
            {"text": s.text, "citations": list(s.citations), "grounded": round(s.grounded, 4), "supported": s.supported}
            for s in self.sentences
        ]
        citations = [citation.row() for citation in self.citations]
        about = {"question": self.question, "answer": self.answer, "type": self.type, "citations": citations}
        return {**about, "sentences": sentences, "searched": self.searched.row()}

    def lines(self) -> list[str]:
        """For a terminal: the answer with numbers of citations, then those."""
        said = [
            s.text + "".join(f" [{number + 1}]" for number in s.citations) + ("" if s.supported else " [unsupported]")
            for s in self.sentences
        ]
        places = [f"  [{n}] {c.file}:{c.start}-{c.end}  {shortened(c.text)}" for n, c in enumerate(self.citations, 1)]
        return [printable(line) for line in (" ".join(said), *places)]


def shortened(text: str, characters: int = 160) -> str:
    """A text on one line, its end left out where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 2] + " …"


def citations_of(cited: Sequence[Sequence[Citation]]) -> tuple[tuple[Citation, ...], list[tuple[int, ...]]]:
    """All citations, each once, and their numbers for each sentence."""
    places: dict[Citation, int] = {}
    numbers = [tuple(dict.fromkeys(places.setdefault(one, len(places)) for one in part)) for part in cited]
    return tuple(places), numbers
