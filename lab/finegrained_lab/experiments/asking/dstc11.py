"""Citations on real text, by gold: `finegrained ask` on reviews and FAQs (DSTC11 track 5), against retrieval alone.

An entity is a document: its reviews and its FAQs are sections. The snippets that people chose for a turn are places in
it, and a citation is right if it touches one. Nothing was fitted on these data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from finegrained_lab.experiments.asking.folders import Remembering
from finegrained_lab.experiments.intervals import difference_interval, share_interval
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.published.dialogues.dstc11_track import EntityMatcher, Snippet, Track, TrackTurn, read_track
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory
from finegrained_rlhf.core.sources import Part
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
ALONE: Mapping[str, tuple[str, ...]] = {"bm25": ("bm25",), "dense": ("dense",), "both": ("bm25", "dense")}
"""Retrieval alone: the first sentence of an index of sentences."""
ASKED: Mapping[str, Judges] = {"ask, words": "words", "ask, MiniLM": "encoder", "ask, MiniLM and mpnet": "reranker"}
QUERIES = ("last turn", "with its entity")
_TIMED = 20  # turns whose parts are timed


def write_folder(track: Track, docs: Path) -> dict[Snippet, Place]:
    """Write a Markdown file an entity; returns where each snippet stands."""
    places: dict[Snippet, Place] = {}
    for entity, texts in track.texts.items():
        file, text = f"{'-'.join(entity)}.md", f"# {track.names[entity].title()}\n"
        section = ""
        for snippet, said in texts.items():
            kind, document = snippet.place[:2]
            if kind != section.partition(" ")[0]:
                text += f"\n## {'Reviews' if kind == 'review' else 'Questions and answers'}\n"
            if (here := f"{kind} {document}") != section:
                text, section = f"{text}\n{'- ' if kind == 'faq' else ''}", here
            squeezed = " ".join(said.split())
            places[snippet] = (file, (len(text), len(text) + len(squeezed)))
            text += f"{squeezed} " if kind == "review" else f"{squeezed}\n"
        write_text(docs / file, text + "\n")
    return places


@dataclass(frozen=True)
class Dstc11AskTable(Results):
    """Citations of knowledge-seeking turns by gold, and what is refused of turns that seek nothing.

    Attributes:
        data: directory of the track's files.
        encoder: of sentences.
        reranker: the larger one.
        directory: of the documents and their indexes.
        part: of the dialogues.
    """

    title: ClassVar[str] = "Asking the reviews and FAQs of DSTC11 track 5"
    about: ClassVar[str] = (
        "Every entity is a document. *First right*: the best sentence touches a snippet that people chose for the "
        "turn; of `ask` whether it is answered or not. *Over both*: that less `both`'s, over the same turns. *Right "
        "document*: it is in the document of one. *Cited*: an answer has a citation that touches one; *precise*: "
        "citations that do, of all in answers to these turns; *refused*: the answer is that it is not in these "
        "documents, of turns that people answered from documents, and of turns that they did not (`other`, not asked "
        "by their last turn alone). Retrieval alone is the first sentence of an index of sentences with their titles, "
        "by BM25, by MiniLM's cosine, or by "
        "both fused. The question is the last turn, or that behind the names of the entities that its dialogue named "
        "last, where it names none. Weights and thresholds are the shipped ones, of generated folders. In brackets 95% "
        "intervals over turns."
    )

    data: InputFile
    encoder: ModelName
    reranker: ModelName
    directory: OutputDirectory
    part: Part = "dev"

    def run(self) -> dict[str, Any]:
        """Ask, measure, write results and page.

        Raises:
            DataError: broken files.
            ModelError: there is no encoder.
        """
        track, root = read_track(self.data, self.part), Path(self.directory)
        places, matcher = write_folder(track, root / "docs"), EntityMatcher(track.names)
        start = time.perf_counter()
        whole, sentences = self._opened(root, "whole"), self._opened(root, "sentences", words=1)
        result = {
            **self.made_by(),
            "turns": {
                "answered": sum(turn.label.target for turn in track.turns),
                "other": sum(not turn.label.target for turn in track.turns),
            },
            "documents": len(track.texts),
            "snippets": len(places),
            "index_seconds": time.perf_counter() - start,
            "rows": [],
            "milliseconds": {},
        }
        encoders = [EncoderConfig(path=str(path)).load() for path in (self.encoder, self.reranker)]
        kept = [Remembering(encoder) for encoder in encoders]
        asking = {name: _judged_by(whole, judges, kept) for name, judges in ASKED.items()}
        for query in QUERIES:
            turns = [turn for turn in track.turns if turn.label.target or query == QUERIES[-1]]
            questions = [question_of(turn, matcher, query) for turn in turns]
            said = {name: _first_sentences(sentences, names, questions) for name, names in ALONE.items()}
            for name, assistant in asking.items():
                said[name] = [_asked(assistant.ask(question)) for question in questions]
                print(f"{query}, {name}: {time.perf_counter() - start:.0f} s")
            counted = {name: [judged(*one, places) for one in zip(turns, of, strict=True)] for name, of in said.items()}
            rows = ((name, _summary(of, counted["both"])) for name, of in counted.items())
            result["rows"] += [{"question": query, "row": name, **row} for name, row in rows]
        for name, judges in ASKED.items():
            result["milliseconds"][name] = _timed(_judged_by(whole, judges, encoders), questions[:_TIMED])
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
            f"{result['documents']} documents with {result['snippets']:,} snippets; {turns['answered']} turns that "
            f"people answered from documents, {turns['other']} others. Indexes of passages and of sentences took "
            f"{result['index_seconds']:.0f} seconds.",
            markdown_table(table, list(table[0])).strip(),
            f"## A turn by part\n\nMilliseconds, medians over {_TIMED} turns with their entities.",
            markdown_table([{"row": n, **of} for n, of in result["milliseconds"].items()], ["row", *_PARTS]).strip(),
        ]
        return "\n\n".join(parts) + "\n"


def question_of(turn: TrackTurn, matcher: EntityMatcher, query: str) -> str:
    """The last turn, perhaps behind the names of the entities that its dialogue named last."""
    last = turn.turns[-1]
    if query == QUERIES[0] or matcher(turn.turns[-1:]):
        return last
    names = [matcher.names[entity].title() for entity in sorted(matcher(turn.turns))]
    return f"{' and '.join(names)}: {last}" if names else last


Said = tuple[str, Place | None, tuple[Place, ...]]
"""A type of answer, the best sentence, and what is cited."""


def _first_sentences(sentences: DocumentAssistant, names: Sequence[str], questions: Sequence[str]) -> list[Said]:
    """What retrieval alone finds: the first sentence, which it always cites."""
    chosen = {name: one for name, one in sentences.retrievers.items() if name in names}
    searching, said = replace(sentences, retrievers=chosen), list[Said]()
    for question in questions:
        found = searching.search(question)[:1]
        first = [(one.file, one.sentences[0]) for one in found]
        said.append(("answer", first[0], tuple(first)) if first else ("not in these documents", None, ()))
    return said


def _judged_by(whole: DocumentAssistant, judges: Judges, encoders: Sequence[Any]) -> DocumentAssistant:
    """The assistant with the shipped weights of what judges; words alone are searched by words alone."""
    words, reranker = judges == "words", Reranker(encoders[1], SHIPPED["encoder"]) if judges == "reranker" else None
    scorer = EvidenceScorer(whole.index.passages(), None if words else encoders[0], SHIPPED[judges], reranker)
    chosen = {name: one for name, one in whole.retrievers.items() if name == "bm25" or not words}
    return replace(whole, retrievers=chosen, scorer=scorer)


def _asked(answer: DocumentAnswer) -> Said:
    looked = answer.searched.passages
    best = (looked[0].passage.file, looked[0].best) if looked else None
    return answer.type, best, tuple((one.file, (one.start, one.end)) for one in answer.citations)


def judged(turn: TrackTurn, said: Said, places: Mapping[Snippet, Place]) -> dict[str, float]:
    """What is counted of a turn."""
    gold = [places[snippet] for snippet in turn.label.snippets]

    def right(place: Place) -> bool:
        file, (start, end) = place
        return any(file == other and start < last and first < end for other, (first, last) in gold)

    kind, best, cited = said
    cited = cited if kind == "answer" else ()
    hits = sum(map(right, cited))
    return {
        "answered": float(turn.label.target),
        "first": float(best is not None and right(best)),
        "document": float(best is not None and best[0] in {file for file, _ in gold}),
        "cited": float(hits > 0),
        "right": float(hits),
        "citations": float(len(cited)),
        "refused": float(kind == "not in these documents"),
    }


def _summary(turns: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Shares with their intervals; `over` with that of a difference."""
    seek, other = ([one for one in turns if one["answered"] == flag] for flag in (1.0, 0.0))

    def column(rows: Sequence[Mapping[str, float]], name: str) -> list[float]:
        return [row[name] for row in rows]

    def share(rows: Sequence[Mapping[str, float]], part: str, of: str = "") -> list[float] | None:
        parts, counts = column(rows, part), column(rows, of) if of else [1.0] * len(rows)
        return [sum(parts) / sum(counts), *share_interval(parts, counts)] if sum(counts) else None

    ones, theirs = [1.0] * len(seek), column([one for one in base if one["answered"]], "first")
    ours = column(seek, "first")
    over = [(sum(ours) - sum(theirs)) / len(seek), *difference_interval((ours, ones), (theirs, ones))]
    shares = {name: share(seek, name) for name in ("first", "document", "cited")}
    precise, refused = share(seek, "right", "citations"), share(seek, "refused")
    return {**shares, "over": over, "precise": precise, "refused": refused, "refused_other": share(other, "refused")}


def _timed(assistant: DocumentAssistant, questions: Sequence[str]) -> dict[str, float]:
    """Median milliseconds of the parts of a turn."""
    spent: dict[str, list[float]] = {part: [] for part in _PARTS}
    for question in questions:
        times = [time.perf_counter()]
        for retriever in assistant.retrievers.values():
            retriever.search([question], assistant.depth)
            times.append(time.perf_counter())
        found = assistant.search(question)
        begun = time.perf_counter()
        assistant.scorer.candidates(question, found)
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
