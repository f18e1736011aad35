"""Questions in dialogues: their records and files, what a retriever can be asked for them, files of what a model wrote.

The project's own format is JSON lines, one `RewriteExample` a line with its field names; `docs/data_formats.md`
describes it. Packages that join read others (`RewriteData.format`). A query without a model is the question, the
dialogue or a human's rewrite (`query_of`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.core.markers import InputFile, at_least
from finegrained_rlhf.core.sources import ManyFormats, Part, Reading, require_unique
from finegrained_rlhf.dialogue.records import PART_SEPARATOR
from finegrained_rlhf.feedback.outputs import read_texts, require_records


@dataclass(frozen=True)
class RewriteExample:
    """A question in a dialogue.

    Attributes:
        id: unique in its file, `DIALOGUE_TURN`.
        dialogue: id of the dialogue.
        turn: number of the question in its dialogue, from 1.
        history: what was said before, oldest first: question, answer, question, answer, …; an answer may be empty
            where it is not known.
        question: the question as it was asked. A dialogue's first question is already replaced by its rewrite where
            there is one, here and in `history`.
        rewrite: the human's rewrite, which stands alone; None where there is none.
        answer: the answer to the question, None where there is none.
        gold: ids of the passages that answer it; empty where they are not known.
        source: where the dialogue comes from (QReCC: quac, nq, trec), "" where it is not known.
        topic_shift: whether the question leaves the topic of the turn before it; None where it is not known.
        grades: how relevant judged passages are, 1 or more, by id, where the data has grades: of every gold passage,
            and of passages that are too little relevant to be gold. nDCG uses them; empty: each gold passage counts 1.
        published: what the published record has, oldest first: what the dialogue is about, where it says so, turns and
            question as they were asked, before any was replaced; empty where nothing was replaced or left out.
    """

    id: str
    dialogue: str
    turn: int
    history: tuple[str, ...]
    question: str
    rewrite: str | None = None
    answer: str | None = None
    gold: tuple[str, ...] = ()
    source: str = ""
    topic_shift: bool | None = None
    grades: Mapping[str, int] = field(default_factory=dict, hash=False)
    published: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise DataError("expected a question, got blank text", record=self.id, field="question")
        if self.turn < 1:
            raise DataError(f"expected a turn from 1, got {self.turn}", record=self.id, field="turn")
        if low := [passage for passage, grade in self.grades.items() if grade < 1]:
            raise DataError(f"expected grades from 1, got {self.grades[low[0]]}", record=self.id, field="grades")
        if self.grades and (without := [passage for passage in self.gold if passage not in self.grades]):
            problem = f"expected a grade of each gold passage, {without[0]!r} has none"
            raise DataError(problem, record=self.id, field="grades")

    @property
    def turns(self) -> tuple[str, ...]:
        """The question and what was said before it, newest first; unknown answers are left out."""
        return (self.question, *(text for text in reversed(self.history) if text.strip()))

    @property
    def context(self) -> str:
        """The policy's input: `u_n [SEP] u_{n-1} [SEP] … u_1`, newest first (thesis, section 4.2)."""
        return PART_SEPARATOR.join(self.turns)


@dataclass(frozen=True)
class PassageLabel:
    """Which passage should be found for a question, and one that should not.

    Attributes:
        example: id of the question.
        positive: id of the passage that should be found.
        negative: id of another passage.
        score: span F1 of the positive with the answer, 0 to 1; None where the positive is a gold passage.
    """

    example: str
    positive: str
    negative: str
    score: float | None = None


KEYS = tuple(entry.name for entry in fields(RewriteExample))


class RewriteReading(Reading[RewriteExample]):
    """Questions in dialogues that were read, dialogue by dialogue, oldest turn first; `entries` are dialogues."""

    entry: ClassVar[str] = "dialogues"
    example: ClassVar[str] = "question"

    def measured(self) -> dict[str, Any]:
        """How many questions have a rewrite, an answer, gold passages; sources; shifts of the topic."""
        return {
            "rewrites": sum(example.rewrite is not None for example in self.examples),
            "answers": sum(example.answer is not None for example in self.examples),
            "gold": sum(bool(example.gold) for example in self.examples),
            "sources": dict(sorted(Counter(example.source for example in self.examples).items())),
            "topic_shifts": sum(example.topic_shift is True for example in self.examples),
        }


def as_turn(value: Any, field: str) -> int:
    """`value` as the number of a turn, from 1; digits in a string will do, as some published files have them."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    right = isinstance(number, int) and not isinstance(number, bool) and number >= 1
    require(right, f"expected a whole number from 1, got {value!r}", field)
    return int(number)


def optional_text(value: Any, field: str) -> str | None:
    """`value` as text; None for null and for blank text."""
    if value is None or not require_text(value, field, empty=True).strip():
        return None
    return str(value)


def read_rewrite_jsonl(path: str | Path) -> list[RewriteExample]:
    """Read a file of questions in dialogues.

    `rewrite`, `answer`, `gold`, `source`, `topic_shift`, `grades` and `published` may be absent; null is the same as
    absent.

    Raises:
        DataError: naming file, record (its id, or its number from 0) and field.
    """
    examples = []
    for i, row in enumerate(read_jsonl(path)):
        try:
            examples.append(parse_rewrite(row))
        except DataError as error:
            raise error.at(file=path, record=row["id"] if isinstance(row.get("id"), str) else i) from None
    require_records(examples, path)
    require_unique(examples, path)
    return examples


def parse_rewrite(row: Mapping[str, Any]) -> RewriteExample:
    """The example of one line.

    Raises:
        DataError: naming the field.
    """
    unknown = [key for key in row if key not in KEYS]
    require(not unknown, f"unknown field, expected {', '.join(KEYS)}", unknown[0] if unknown else "")
    shift = row.get("topic_shift")
    require(shift is None or isinstance(shift, bool), f"expected true, false or null, got {shift!r}", "topic_shift")
    gold = text_list(row.get("gold") or [], "gold")
    for i, passage in enumerate(gold):
        require_text(passage, f"gold[{i}]")
    history = text_list(get_field(row, "history"), "history")
    require(len(history) % 2 == 0, f"expected question, answer, question, answer, …, got {len(history)}", "history")
    return RewriteExample(
        id=require_text(get_field(row, "id"), "id"),
        dialogue=require_text(get_field(row, "dialogue"), "dialogue"),
        turn=as_turn(get_field(row, "turn"), "turn"),
        history=tuple(history),
        question=require_text(get_field(row, "question"), "question"),
        rewrite=optional_text(row.get("rewrite"), "rewrite"),
        answer=optional_text(row.get("answer"), "answer"),
        gold=tuple(gold),
        source=optional_text(row.get("source"), "source") or "",
        topic_shift=shift,
        grades=_grades(row.get("grades")),
        published=tuple(text_list(row.get("published") or [], "published")),
    )


def _grades(value: Any) -> dict[str, int]:
    """Grades by passage; null is none."""
    grades = as_object({} if value is None else value, "grades")
    for passage, grade in grades.items():
        valid = isinstance(grade, int) and not isinstance(grade, bool) and grade >= 1
        require(valid, f"expected a whole number from 1, got {grade!r}", f"grades.{passage}")
    return dict(grades)


def write_rewrite_jsonl(path: str | Path, examples: Iterable[RewriteExample]) -> None:
    """Write one example a line, atomically; fields that say nothing (null, empty) are left out."""
    write_jsonl(path, (rewrite_row(example) for example in examples))


def rewrite_row(example: RewriteExample) -> dict[str, Any]:
    """The JSON object of one example."""
    needed = {"id", "dialogue", "turn", "history", "question"}
    return {key: value for key, value in asdict(example).items() if key in needed or value not in (None, (), "", {})}


def read_questions(path: str | Path) -> RewriteReading:
    """What `read_rewrite_jsonl` reads, and of how many dialogues it is."""
    examples = tuple(read_rewrite_jsonl(path))
    return RewriteReading(examples, len({example.dialogue for example in examples}))


@dataclass(frozen=True)
class RewriteData(ManyFormats):
    """Where questions in dialogues come from.

    Attributes:
        path: the file.
        format: `jsonl` (the project's own), or one that a package reads; the laboratory reads `qrecc`, `canard`,
            `topiocqa`, `cast` (TREC CAsT 2019 to 2021), `cast22` (CAsT 2022) and `ikat` (TREC iKAT).
        rewrites: `cast` only: the resolved questions of 2019.
        qrels: TREC only: the judgements.
        min_relevance: TREC only: the lowest grade that makes a passage gold, at least 1; nDCG counts every grade.
        unknown: `canard` only: keep "I don't know." as an answer, or drop it.
        part: `canard` only: all, train, dev or test; a tenth of the dialogues is dev, two tenths are test.
    """

    kind: ClassVar[str] = "questions"
    own: ClassVar = staticmethod(read_questions)

    path: InputFile
    format: str = "jsonl"
    rewrites: InputFile | None = None
    qrels: InputFile | None = None
    min_relevance: Annotated[int, at_least(1)] = 1
    unknown: Literal["keep", "drop"] = "keep"
    part: Part = "all"

    file_fields: ClassVar[tuple[str, ...]] = ("path", "rewrites", "qrels")
    """The fields that name files."""

    @property
    def files(self) -> dict[str, Path]:
        """The files that are read, by the field that names them."""
        return {name: Path(value) for name in self.file_fields if (value := getattr(self, name)) is not None}


def as_rewrite_data(data: str | RewriteData) -> RewriteData:
    """`data`, where a text names a file in the project's own format."""
    return RewriteData(data) if isinstance(data, str) else data


QueryKind = Literal["question", "context", "rewrite", "asked", "published"]


def query_of(example: RewriteExample, kind: QueryKind) -> str | None:
    """A query of a question without a model; None where there is none of this kind.

    `question`: the question, a dialogue's first one replaced by its rewrite as in `RewriteExample`. `context`: all
    turns up to it. `rewrite`: the human's. `asked`: the question as it was asked, nothing replaced. `published`: all
    that the published record has, what the dialogue is about included, nothing replaced.

    A dialogue is its turns, newest first, with a space between them: the policies' separator is no word to search for.
    """
    if kind == "rewrite":
        return example.rewrite
    if kind == "asked":
        return example.published[-1] if example.published else example.question
    if kind == "published" and example.published:
        return " ".join(text for text in reversed(example.published) if text.strip())
    return example.question if kind == "question" else " ".join(example.turns)


def read_rewrites(path: str | Path) -> dict[str, str]:
    """Rewrites by the id of their question, from JSON lines with `id` and `rewrite`; other fields are ignored.

    A rewrite may be blank: a policy can stop at once.

    Raises:
        DataError: naming file, record (from 0) and field; an id that occurs twice, no line at all.
    """
    return read_texts(path, "rewrite")


def read_cut(path: str | Path) -> frozenset[str] | None:
    """Ids of the rewrites that the limit of tokens cut off: lines with `finished: false`; None where no line says.

    Raises:
        DataError: no such file, a broken line, or `finished` is neither true nor false.
    """
    marked = [row for row in read_jsonl(path) if row.get("finished") is not None]
    for row in marked:
        if not isinstance(row["finished"], bool):
            problem = f"expected true or false, got {row['finished']!r}"
            raise DataError(problem, file=path, record=str(row.get("id")), field="finished")
    return frozenset(row["id"] for row in marked if not row["finished"]) if marked else None


def write_rewrites(path: str | Path, rewrites: Mapping[str, str]) -> None:
    """Write `read_rewrites`' format, atomically."""
    write_jsonl(path, ({"id": name, "rewrite": text} for name, text in rewrites.items()))
