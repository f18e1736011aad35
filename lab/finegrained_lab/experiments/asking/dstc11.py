"""Citations on real text, by gold: `finegrained ask` on reviews and FAQs (DSTC11 track 5), against retrieval alone.

An entity is a document: its reviews and its FAQs are sections. The snippets that people chose for a turn are places in
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from finegrained_lab.experiments.asking.citations import CitationsTable, Corpus, Place, Question, about_citations
from finegrained_lab.published.dialogues.dstc11_track import EntityMatcher, Snippet, Track, TrackTurn, read_track
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.core.sources import Part

QUERIES = ("last turn", "with its entity")


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
class Dstc11AskTable(CitationsTable):
    """Citations of knowledge-seeking turns by gold, and what is refused of turns that seek nothing.

    Attributes:
        data: directory of the track's files.
        part: of the dialogues.
    """

    title: ClassVar[str] = "Asking the reviews and FAQs of DSTC11 track 5"
    units: ClassVar[str] = "snippets"
    timed: ClassVar[str] = "with their entities"
    about: ClassVar[str] = about_citations(
        "Every entity is a document.",
        "a snippet that people chose for the turn",
        "not asked by their last turn alone",
        "The question is the last turn, or that behind the names of the entities that its dialogue named last, where "
        "it names none.",
        "turns, as if those of a dialogue were independent",  # records do not say which dialogue they are of
    )

    data: InputFile
    part: Part = "dev"

    def corpus(self, docs: Path) -> Corpus:
        """A document an entity; turns that seek nothing are asked in the second form alone."""
        track = read_track(self.data, self.part)
        places, matcher = write_folder(track, docs), EntityMatcher(track.names)
        asked = {
            query: [
                Question(
                    question_of(turn, matcher, query),
                    str(number),
                    tuple(places[one] for one in turn.label.snippets),
                )
                for number, turn in enumerate(track.turns)
                if turn.label.target or query == QUERIES[-1]
            ]
            for query in QUERIES
        }
        return Corpus(len(track.texts), len(places), asked)


def question_of(turn: TrackTurn, matcher: EntityMatcher, query: str) -> str:
    """The last turn, perhaps behind the names of the entities that its dialogue named last."""
    last = turn.turns[-1]
    if query == QUERIES[0] or matcher(turn.turns[-1:]):
        return last
    names = [matcher.names[entity].title() for entity in sorted(matcher(turn.turns))]
    return f"{' and '.join(names)}: {last}" if names else last
