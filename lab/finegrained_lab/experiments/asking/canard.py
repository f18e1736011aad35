"""Citations on real text, by gold: `finegrained ask` on what QuAC's dialogues quote of Wikipedia (CANARD).

CANARD has no articles, but the answers of its dialogues are spans of them. An article is a document, its sections are
those that dialogues are about, and their text is every answer that was given; the answer to a question is its gold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.experiments.asking.citations import CitationsTable, Corpus, Place, Question, about_citations
from finegrained_rlhf.core.checks import as_object, get_field, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_text
from finegrained_rlhf.core.markers import InputFile, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash

NOTHING = "I don't know."
"""The answer where the section has none."""
FORMS = ("question", "with its topic", "rewritten by people")


@dataclass(frozen=True)
class Turn:
    """A question whose answer is known.

    Attributes:
        dialogue: of QuAC.
        article: title.
        section: title.
        question: as it was asked.
        rewrite: by people, to be understood alone.
        answer: a span of the section, or `NOTHING`.
    """

    dialogue: str
    article: str
    section: str
    question: str
    rewrite: str
    answer: str

    def asked(self, form: str) -> str:
        """The question in a form."""
        topic = f"{self.article}, {self.section}: {self.question}"
        return dict(zip(FORMS, (self.question, topic, self.rewrite), strict=True))[form]


def read_turns(path: str | Path) -> list[Turn]:
    """The questions of a CANARD file whose dialogue goes on, so that the next record's history has the answer.

    Raises:
        DataError: a record is not as it should be, or no question has an answer.
    """
    rows: dict[tuple[str, int], tuple[Mapping[str, Any], list[str]]] = {}
    for number, raw in enumerate(read_json(path)):
        try:
            row = as_object(raw, "record")
            history = [require_text(text, "History") for text in get_field(row, "History")]
            rows[str(get_field(row, "QuAC_dialog_id")), int(get_field(row, "Question_no"))] = (row, history)
        except (DataError, TypeError, ValueError) as error:
            raise DataError(str(error), file=path, record=number) from None
    turns = [
        Turn(dialogue, history[0], history[1], row["Question"], row["Rewrite"], rows[dialogue, number + 1][1][-1])
        for (dialogue, number), (row, history) in rows.items()
        if (dialogue, number + 1) in rows
    ]
    if not turns:
        raise DataError("no question has an answer", file=path)
    return turns


def write_articles(turns: Iterable[Turn], docs: Path) -> dict[Turn, Place]:
    """Write a Markdown file an article; returns where the answer to each question stands that has one."""
    articles: dict[str, dict[str, list[Turn]]] = {}
    for turn in turns:
        articles.setdefault(turn.article, {}).setdefault(turn.section, []).append(turn)
    places: dict[Turn, Place] = {}
    for number, (article, sections) in enumerate(articles.items()):
        file, text = f"article-{number}.md", f"# {article}\n"
        for section, asked in sections.items():
            text += f"\n## {section}\n\n"
            for turn in asked:
                if turn.answer == NOTHING:
                    continue
                answer = " ".join(turn.answer.split())
                places[turn] = (file, (len(text), len(text) + len(answer)))
                text += f"{answer}{'' if answer.endswith(('.', '!', '?')) else '.'}\n\n"
        write_text(docs / file, text)
    return places


@dataclass(frozen=True)
class CanardAskTable(CitationsTable):
    """Citations of CANARD's questions by the answers of their dialogues, by how the question is asked.

    Attributes:
        data: CANARD file.
        dialogues: whose questions are asked; documents are made of all.
        seed: of which.
    """

    title: ClassVar[str] = "Asking what QuAC's dialogues quote of Wikipedia (CANARD)"
    units: ClassVar[str] = "answers"
    timed: ClassVar[str] = "as people rewrote them"
    about: ClassVar[str] = about_citations(
        "Every article is a document of the answers that dialogues quote of it, since the articles themselves are not "
        "in the data: there is less to search than in Wikipedia, and all of it was an answer once.",
        "the answer to the question",
        "of whose section people said that it has no answer, asked as rewritten alone; another section may have one",
        "The question is asked as it stands, behind the titles of article and section, or as people rewrote it.",
        "dialogues, whose turns are drawn together",
    )

    data: InputFile
    dialogues: Annotated[int, at_least(1)] = 40
    seed: Seed = 0

    def corpus(self, docs: Path) -> Corpus:
        """A document an article; questions without an answer are asked as people rewrote them."""
        turns = read_turns(self.data)
        places = write_articles(turns, docs)
        ordered = sorted({turn.dialogue for turn in turns}, key=lambda name: stable_hash(self.seed, "asked", name))
        chosen = set(ordered[: self.dialogues])
        return Corpus(len({turn.article for turn in turns}), len(places), self._asked(turns, places, chosen))

    def _asked(
        self, turns: Sequence[Turn], places: Mapping[Turn, Place], chosen: set[str]
    ) -> dict[str, list[Question]]:
        return {
            form: [
                Question(turn.asked(form), turn.dialogue, (places[turn],) if turn in places else ())
                for turn in turns
                if turn.dialogue in chosen and (turn in places or form == FORMS[-1])
            ]
            for form in FORMS
        }
