"""Files of questions in dialogues: which format one has, and what was read from it.

The project's own format is JSON lines, one `RewriteExample` a line with its field names; `docs/data_formats.md`
describes it. Packages that join read others (`RewriteData.format`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.core.markers import InputFile, at_least
from finegrained_rlhf.core.sources import ManyFormats, Part, Reading, require_unique
from finegrained_rlhf.feedback.outputs import require_records

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
