"""Citations by gold: `finegrained ask` on documents that come with questions, against retrieval alone.

A question comes with the places that people answered it from, and a citation is right if it touches one. Nothing is
fitted on these documents.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finegrained_lab.experiments.asking.folders import Remembering
from finegrained_lab.experiments.intervals import difference_interval, share_interval
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.markers import ModelName, OutputDirectory
from finegrained_rlhf.inscit.asking.evidence import SHIPPED, EvidenceScorer, Judges, Reranker
from finegrained_rlhf.inscit.asking.job import Ask, open_assistant
from finegrained_rlhf.retrieval.dense.config import EncoderConfig
from finegrained_rlhf.text.segmentation import Span
from finegrained_rlhf.text.tables import markdown_table

if TYPE_CHECKING:
    from finegrained_rlhf.inscit.asking.assistant import DocumentAssistant
    from finegrained_rlhf.inscit.asking.records import DocumentAnswer

Place = tuple[str, Span]
"""A file and a span of characters in it."""
Reply = tuple[str, Place | None, tuple[Place, ...]]
"""A type of answer, the best sentence, and what is cited."""
ALONE: Mapping[str, tuple[str, ...]] = {"bm25": ("bm25",), "dense": ("dense",), "both": ("bm25", "dense")}
"""Retrieval alone: the first sentence of an index of sentences."""
ASKED: Mapping[str, Judges] = {"ask, words": "words", "ask, MiniLM": "encoder", "ask, MiniLM and mpnet": "reranker"}
_TIMED = 20  # turns whose parts are timed


def about_citations(documents: str, place: str, other: str, question: str, drawn: str) -> str:
    """What a page says of its columns: what a document is, a place of gold, `refused` of others, how is asked, and what
    intervals are over.
    """
    return (
        f"{documents} *First right*: the best sentence touches {place}; of `ask` whether it is answered or not. *Over "
        "both*: that less `both`'s, over the same turns. *Right document*: it is in the document of one. *Cited*: an "
        "answer has a citation that touches one; *precise*: citations that do, of all in answers to these turns; "
        "*refused*: the answer is that it is not in these documents, of turns that people answered from documents, and "
        f"of turns that they did not (`other`, {other}). Retrieval alone is the first sentence of an index of "
        f"sentences with their titles, by BM25, by MiniLM's cosine, or by both fused. {question} Weights and "
        f"thresholds are the shipped ones, of generated folders. In brackets 95% intervals over {drawn}."
    )


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        text: the question.
        dialogue: that it is a turn of.
        gold: where people answered it from; none where they did not.
    """

    text: str
    dialogue: str
    gold: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Documents that were written to a folder, and what is asked of them.

    Attributes:
        documents: how many.
        units: how many places of gold there are in them.
        asked: by form of the question, the questions; the last form asks all turns.
    """

    documents: int
    units: int
    asked: Mapping[str, Sequence[Question]]


@dataclass(frozen=True)
class CitationsTable(Results):
    """Citations of questions by gold, and what is refused of those that people did not answer.

    Attributes:
        encoder: of sentences.
        reranker: the larger one.
        directory: of the documents and their indexes.
    """

    title: ClassVar[str]
    about: ClassVar[str]
    units: ClassVar[str]
    """What places of gold are called on the page."""
    timed: ClassVar[str]
    """Of the questions whose parts are timed."""
    encoder: ModelName
    reranker: ModelName
    directory: OutputDirectory

    @abstractmethod
    def corpus(self, docs: Path) -> Corpus:
        """Write the documents to a folder, and say what is asked."""

    def run(self) -> dict[str, Any]:
        """Ask, measure, write results and page.

        Raises:
            DataError: broken files.
            ModelError: there is no encoder.
        """
        root = Path(self.directory)
        corpus = self.corpus(root / "docs")
        start = time.perf_counter()
        whole, sentences = self._opened(root, "whole"), self._opened(root, "sentences", words=1)
        every = list(corpus.asked.values())[-1]
        result = {
            **self.made_by(),
            "turns": {
                "answered": sum(bool(one.gold) for one in every),
                "other": sum(not one.gold for one in every),
            },
            "documents": corpus.documents,
            "snippets": corpus.units,
            "index_seconds": time.perf_counter() - start,
            "rows": [],
            "milliseconds": {},
        }
        encoders = [EncoderConfig(path=str(path)).load() for path in (self.encoder, self.reranker)]
        kept = [Remembering(encoder) for encoder in encoders]
        asking = {name: _judged_by(whole, judges, kept) for name, judges in ASKED.items()}
        for form, questions in corpus.asked.items():
            texts = [one.text for one in questions]
            replies = {name: _first_sentences(sentences, names, texts) for name, names in ALONE.items()}
            for name, assistant in asking.items():
                replies[name] = [_asked(assistant.ask(text)) for text in texts]
                print(f"{form}, {name}: {time.perf_counter() - start:.0f} s")
            counted = {name: [judged(*one) for one in zip(questions, of, strict=True)] for name, of in replies.items()}
            rows = ((name, _summary(of, counted["both"])) for name, of in counted.items())
            result["rows"] += [{"question": form, "row": name, **row} for name, row in rows]
        for name, judges in ASKED.items():
            result["milliseconds"][name] = _timed(_judged_by(whole, judges, encoders), texts[:_TIMED])
        return self.write(result)

    def _opened(self, root: Path, name: str, **cut: Any) -> DocumentAssistant:
        """An assistant over an index of the documents with the encoder."""
        index, encoder = str(root / name), str(self.encoder)
        settings = Ask(docs=str(root / "docs"), index=index, encoder=encoder, reranker="none", model="none", **cut)
        return open_assistant(settings)[0]

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        turns = result["turns"]
        table = [
            {
                "question": row["question"],
                "row": row["row"],
                **{head: _cell(row[key]) for head, key in _COLUMNS.items()},
            }
            for row in result["rows"]
        ]
        parts = [
            self.opening(result, self.title, self.about),
            f"{result['documents']} documents with {result['snippets']:,} {self.units}; {turns['answered']} turns that "
            f"people answered from documents, {turns['other']} others. Indexes of passages and of sentences took "
            f"{result['index_seconds']:.0f} seconds.",
            markdown_table(table, list(table[0])).strip(),
            f"## A turn by part\n\nMilliseconds, medians over {_TIMED} turns {self.timed}.",
            markdown_table([{"row": n, **of} for n, of in result["milliseconds"].items()], ["row", *_PARTS]).strip(),
        ]
        return "\n\n".join(parts) + "\n"


def _first_sentences(sentences: DocumentAssistant, names: Sequence[str], questions: Sequence[str]) -> list[Reply]:
    """What retrieval alone finds: the first sentence, which it always cites."""
    chosen = {name: one for name, one in sentences.retrievers.items() if name in names}
    searching, replies = replace(sentences, retrievers=chosen), list[Reply]()
    for question in questions:
        best = searching.search(question)[:1]
        first = [(one.file, one.sentences[0]) for one in best]
        replies.append(("answer", first[0], tuple(first)) if first else ("not in these documents", None, ()))
    return replies


def _judged_by(whole: DocumentAssistant, judges: Judges, encoders: Sequence[Any]) -> DocumentAssistant:
    """The assistant with the shipped weights of what judges; words alone are searched by words alone."""
    words, reranker = judges == "words", Reranker(encoders[1], SHIPPED["encoder"]) if judges == "reranker" else None
    scorer = EvidenceScorer(whole.index.passages(), None if words else encoders[0], SHIPPED[judges], reranker)
    chosen = {name: one for name, one in whole.retrievers.items() if name == "bm25" or not words}
    return replace(whole, retrievers=chosen, scorer=scorer)


def _asked(answer: DocumentAnswer) -> Reply:
    looked = answer.searched.passages
    best = (looked[0].passage.file, looked[0].best) if looked else None
    return answer.type, best, tuple((one.file, (one.start, one.end)) for one in answer.citations)


def judged(question: Question, reply: Reply) -> dict[str, Any]:
    """What is counted of a turn, and its dialogue."""

    def right(place: Place) -> bool:
        file, (start, end) = place
        return any(file == other and start < last and first < end for other, (first, last) in question.gold)

    kind, best, cited = reply
    cited = cited if kind == "answer" else ()
    hits = sum(map(right, cited))
    return {
        "dialogue": question.dialogue,
        "answered": float(bool(question.gold)),
        "first": float(best is not None and right(best)),
        "document": float(best is not None and best[0] in {file for file, _ in question.gold}),
        "cited": float(hits > 0),
        "right": float(hits),
        "citations": float(len(cited)),
        "refused": float(kind == "not in these documents"),
    }


def _summary(turns: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Shares with their intervals over dialogues; `over` with that of a difference."""
    seek, other = ([one for one in turns if one["answered"] == flag] for flag in (1.0, 0.0))

    def share(rows: Sequence[Mapping[str, Any]], part: str, of: str = "") -> list[float] | None:
        parts, counts = _by_dialogue(rows, part), _by_dialogue(rows, of)
        return [sum(parts) / sum(counts), *share_interval(parts, counts)] if sum(counts) else None

    ones, ours = _by_dialogue(seek, ""), _by_dialogue(seek, "first")
    theirs = _by_dialogue([one for one in base if one["answered"]], "first")
    over = [(sum(ours) - sum(theirs)) / sum(ones), *difference_interval((ours, ones), (theirs, ones))]
    shares = {name: share(seek, name) for name in ("first", "document", "cited")}
    precise, refused = share(seek, "right", "citations"), share(seek, "refused")
    return {**shares, "over": over, "precise": precise, "refused": refused, "refused_other": share(other, "refused")}


def _by_dialogue(turns: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    """Sums of a column over the turns of each dialogue, in the order of their first ones; without one, their number."""
    sums: dict[str, float] = {}
    for turn in turns:
        sums[turn["dialogue"]] = sums.get(turn["dialogue"], 0.0) + (turn[column] if column else 1.0)
    return list(sums.values())


def _timed(assistant: DocumentAssistant, questions: Sequence[str]) -> dict[str, float]:
    """Median milliseconds of the parts of a turn."""
    spent: dict[str, list[float]] = {part: [] for part in _PARTS}
    for question in questions:
        times = [time.perf_counter()]
        for retriever in assistant.retrievers.values():
            retriever.search([question], assistant.depth)
            times.append(time.perf_counter())
        passages = assistant.search(question)
        begun = time.perf_counter()
        assistant.scorer.candidates(question, passages)
        judged = time.perf_counter()
        assistant.ask(question)
        searches = dict(zip(assistant.retrievers, np.diff(times), strict=True))
        parts = {**searches, "judge": judged - begun, "whole": time.perf_counter() - judged}
        for part, seconds in parts.items():
            spent[part].append(1000 * float(seconds))
    return {part: round(float(np.median(of)), 1) for part, of in spent.items() if of}


_PARTS = ("bm25", "dense", "judge", "whole")
_COLUMNS = {
    "first right": "first",
    "over both": "over",
    "right document": "document",
    "cited": "cited",
    "precise": "precise",
    "refused": "refused",
    "refused: other": "refused_other",
}


def _cell(share: Sequence[float] | None) -> str:
    return "–" if share is None else f"{share[0]:.2f} [{share[1]:.2f}, {share[2]:.2f}]"
