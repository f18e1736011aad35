"""Files of dialogues: which format one has, and what was read from it.

The project's own format is JSON lines, one dialogue with its passages a line; `docs/data_formats.md` describes it.
Passages come cut into spans or as plain text, which is cut into sentences. Packages that join read other formats
(`DialogueData.format`). What is cut off by a token limit is counted where examples become tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.core.checks import (
    as_flag,
    as_index,
    as_list,
    as_object,
    get_field,
    require,
    require_text,
    text_list,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.extensions import load_part, parts
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.core.sources import ManyFormats, Part, Reading
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn, check_role
from finegrained_rlhf.text.segmentation import Segmenter, SpacySegmenter

KEYS = frozenset("id turns passages gold also_right references response unseen no_passage source".split())
FIRST = "agent turn without a user turn before it"


class DialogueReading(Reading[DialogueExample]):
    """One record for each turn to answer, `entries` being the dialogues of the file."""

    entry: ClassVar[str] = "dialogues"
    example: ClassVar[str] = "turn to answer"

    def measured(self) -> dict[str, Any]:
        """`gold`, `history_labels`, `passages` and `unseen`.

        `gold` maps the number of gold entries of an example to the number of examples; `history_labels` counts the
        turns with a label of their own over all examples.
        """
        gold = Counter(len(example.gold) for example in self.examples)
        return {
            "gold": {str(number): count for number, count in sorted(gold.items())},
            "history_labels": sum(turn.knowledge is not None for example in self.examples for turn in example.turns),
            "passages": sum(len(example.passages) for example in self.examples),
            "unseen": sum(example.unseen is True for example in self.examples),
        }


def read_dialogue_jsonl(path: str | Path, segmenter: Segmenter | None = None) -> DialogueReading:
    """Read a file of dialogues.

    Args:
        path: the file.
        segmenter: cuts passages given as plain text; spaCy's rules when None.

    Raises:
        DataError: naming file, record (its id, or its number from 0) and field.
    """
    skipped: Counter[str] = Counter()
    examples: list[DialogueExample] = []
    rows = read_jsonl(path)
    for i, row in enumerate(rows):
        try:
            examples += parse_dialogue(row, i, segmenter, skipped)
        except DataError as error:
            raise error.at(file=path, record=row["id"] if isinstance(row.get("id"), str) else i) from None
    return DialogueReading.of(examples, len(rows), skipped, {}, path)


def parse_dialogue(
    row: Mapping[str, Any], number: int = 0, segmenter: Segmenter | None = None, skipped: Counter[str] | None = None
) -> list[DialogueExample]:
    """The examples of one line: one for a dialogue that ends with a user turn, else one for each agent turn.

    Raises:
        DataError: naming the field.
    """
    unknown = sorted(set(row) - KEYS)
    require(not unknown, f"unknown field, expected {', '.join(sorted(KEYS))}", unknown[0] if unknown else "")
    name = str(number) if row.get("id") is None else require_text(row["id"], "id")
    passages = _passages(get_field(row, "passages"), segmenter)
    none_used = as_flag(row.get("no_passage"), "no_passage")
    if none_used is not None:
        passages = (*passages, NO_PASSAGE)
    turns, knowledge = _turns(get_field(row, "turns"), passages)
    shared: dict[str, Any] = {
        "passages": passages,
        "unseen": as_flag(row.get("unseen"), "unseen"),
        "source": require_text(row.get("source", ""), "source", empty=True),
    }
    if turns[-1].role == "user":
        gold = _several(row.get("gold"), passages, "gold")
        if none_used:
            require(not gold, "expected no gold where no_passage is true", "gold")
            gold = (Knowledge(len(passages) - 1, 0, 0),)
        return [
            DialogueExample(
                name,
                turns,
                gold=gold,
                references=tuple(text_list(row.get("references") or [], "references")),
                response=row.get("response"),
                no_passage=_is_none(gold, passages),
                also_right=_numbers(row.get("also_right"), passages),
                **shared,
            )
        ]
    for key in ("gold", "also_right", "references", "response"):
        require(row.get(key) is None, "belongs to a dialogue that ends with a user turn; label the agent turns", key)
    require(not none_used, "expected false or null in a dialogue that ends with an agent turn", "no_passage")
    return list(_answers(name, turns, knowledge, shared, Counter() if skipped is None else skipped))


def _answers(
    name: str,
    turns: Sequence[Turn],
    knowledge: Sequence[tuple[Knowledge, ...]],
    shared: Mapping[str, Any],
    skipped: Counter[str],
) -> Iterator[DialogueExample]:
    for i, turn in enumerate(turns):
        if turn.role != "agent":
            continue
        if i == 0 or turns[i - 1].role != "user":
            skipped[FIRST] += 1
            continue
        gold = knowledge[i]
        yield DialogueExample(
            id=f"{name}-{i}",
            turns=tuple(turns[:i]),
            gold=gold,
            response=turn.text,
            no_passage=_is_none(gold, shared["passages"]),
            **shared,
        )


def _is_none(gold: Sequence[Knowledge], passages: Sequence[Passage]) -> bool:
    return len(gold) == 1 and passages[gold[0].passage] == NO_PASSAGE


def _passages(value: Any, segmenter: Segmenter | None) -> tuple[Passage, ...]:
    passages = []
    for i, item in enumerate(as_list(value, "passages")):
        field = f"passages[{i}]"
        item = as_object(item, field)
        require(("spans" in item) != ("text" in item), "expected either `spans` or `text`", field)
        if "spans" in item:
            spans = tuple(text_list(item["spans"], f"{field}.spans"))
        else:
            text = require_text(item["text"], f"{field}.text")
            segmenter = segmenter or SpacySegmenter()
            spans = tuple(text[start:end] for start, end in segmenter.sentences(text))
        title = require_text(item.get("title", ""), f"{field}.title", empty=True)
        passages.append(Passage(require_text(item.get("id", str(i)), f"{field}.id"), title, spans))
    return tuple(passages)


def _turns(value: Any, passages: Sequence[Passage]) -> tuple[tuple[Turn, ...], list[tuple[Knowledge, ...]]]:
    """The turns, each with the first entry of its knowledge as its label, and all entries of each."""
    turns, knowledge = [], []
    for i, item in enumerate(as_list(value, "turns")):
        field = f"turns[{i}]"
        item = as_object(item, field)
        known = _several(item.get("knowledge"), passages, f"{field}.knowledge")
        text = require_text(get_field(item, "text", f"{field}."), f"{field}.text")
        role = get_field(item, "role", f"{field}.")
        check_role(role, f"{field}.role")
        turns.append(Turn(role, text, known[0] if known else None))
        knowledge.append(known)
    require(any(turn.role == "user" for turn in turns), "the dialogue has no user turn", "turns")
    return tuple(turns), knowledge


def _several(value: Any, passages: Sequence[Passage], field: str) -> tuple[Knowledge, ...]:
    """One entry, a list of them, or null."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return (_knowledge(value, passages, field),)
    named = ((f"{field}[{i}]", item) for i, item in enumerate(as_list(value, field)))
    return tuple(_knowledge(as_object(item, name), passages, name) for name, item in named)


def _knowledge(value: Mapping[str, Any], passages: Sequence[Passage], field: str) -> Knowledge:
    """`{"passage", "begin", "end"}` or `{"passage", "text"}`; the passage by its number or its id."""
    number = _number(get_field(value, "passage", f"{field}."), passages, field)
    if "text" not in value:
        begin = as_index(get_field(value, "begin", f"{field}."), f"{field}.begin")
        end = as_index(value.get("end", begin), f"{field}.end")
        return Knowledge(number, begin, end)
    require("begin" not in value and "end" not in value, "expected either `begin` and `end` or `text`", field)
    text = require_text(value["text"], f"{field}.text")
    begin, end = spans_of_text(passages[number], text, f"{field}.text")
    return Knowledge(number, begin, end)


def _number(named: Any, passages: Sequence[Passage], field: str, inner: str = ".passage") -> int:
    """The passage that a number or an id names."""
    if isinstance(named, str):
        ids = [passage.id for passage in passages]
        require(named in ids, f"no passage has the id {named!r}", f"{field}{inner}")
        return ids.index(named)
    number = as_index(named, f"{field}{inner}")
    require(number < len(passages), f"passage {number} does not exist, there are {len(passages)}", field)
    return number


def _numbers(value: Any, passages: Sequence[Passage]) -> tuple[int, ...]:
    """A list of passages by number or id, or null."""
    listed = [] if value is None else as_list(value, "also_right")
    return tuple(_number(item, passages, f"also_right[{i}]", "") for i, item in enumerate(listed))


def spans_of_text(passage: Passage, text: str, field: str) -> tuple[int, int]:
    """The first and last span that the first occurrence of `text` touches; white space does not matter.

    Raises:
        DataError: the passage does not hold the text.
    """
    wanted = " ".join(text.split())
    joined, ends = "", []
    for span in passage.spans:
        joined = f"{joined} {' '.join(span.split())}".strip()
        ends.append(len(joined))
    start = joined.find(wanted)
    require(start >= 0, f"the text does not exist in passage {passage.id!r}: {wanted[:60]!r}", field)
    begin = next(i for i, end in enumerate(ends) if start < end)
    last = next(i for i, end in enumerate(ends) if start + len(wanted) <= end)
    return begin, last


def dialogue_row(
    name: str,
    turns: Sequence[Turn],
    passages: Sequence[Passage],
    unseen: bool | None = None,
    source: str = "",
    answer: Turn | None = None,
) -> dict[str, Any]:
    """One line for a dialogue.

    Args:
        name: its id.
        turns: oldest first. If the last one is a user turn, it is to be answered, else every agent turn is.
        passages: of its document.
        unseen: whether the document is absent from training.
        source: where it comes from.
        answer: the agent turn after the last user turn, with its label; only where the dialogue ends with a user turn.
    """
    rows = []
    for turn in turns:
        place = {} if turn.knowledge is None else {"knowledge": asdict(turn.knowledge)}
        rows.append({"role": turn.role, "text": turn.text, **place})
    last: dict[str, Any] = {}
    if answer is not None:
        last = {"gold": None if answer.knowledge is None else asdict(answer.knowledge), "response": answer.text}
    return {
        "id": name,
        "turns": rows,
        "passages": [{"id": p.id, "title": p.title, "spans": list(p.spans)} for p in passages],
        **({} if unseen is None else {"unseen": unseen}),
        **({"source": source} if source else {}),
        **last,
    }


def write_dialogues(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write lines made by `dialogue_row`, atomically."""
    write_jsonl(path, rows)


@dataclass(frozen=True)
class DialogueData(ManyFormats):
    """Where dialogues come from: a `Source[DialogueExample]`.

    Attributes:
        path: the file; the directory for `dstc11`.
        format: `jsonl` (the project's own), or one that a package reads; the laboratory reads `doc2dial`, `wow` and
            `dstc11`.
        documents: `doc2dial` only: the document file; `doc2dial_doc.json` beside `path` when None.
        seen_in: `doc2dial` only: the training dialogues; documents that do not occur there count as unseen.
        keep_unlabelled: `doc2dial` only: keep turns without gold (a blind test set).
        unseen: `wow` only: whether the topics are absent from training; None takes it from the file's name.
        part: `dstc11` only: all, train, dev or test; a tenth of the dialogues is dev, a tenth test.
    """

    kind: ClassVar[str] = "dialogues"
    own: ClassVar = staticmethod(read_dialogue_jsonl)

    path: str
    format: str = "jsonl"
    documents: str | None = None
    seen_in: str | None = None
    keep_unlabelled: bool = False
    unseen: bool | None = None
    part: Part = "all"

    @property
    def files(self) -> dict[str, Path]:
        """The files that it names, by the field; a directory for `dstc11`."""
        named = {"path": self.path, "documents": self.documents, "seen_in": self.seen_in}
        return {name: Path(value) for name, value in named.items() if value is not None}


def shared_task_of(format: str) -> Callable[..., dict[str, float] | None]:
    """What writes a shared task's file: a function of a path, answers (`Found`), and the dialogues where it scores.

    Raises:
        ConfigError: the format is of no shared task.
    """
    tasks = parts("shared_tasks")
    if format not in tasks:
        owners = " or ".join(map(repr, tasks)) or "of a package that is not installed"
        raise ConfigError(f"shared_task belongs to format {owners}, the format is {format!r}")
    task: Callable[..., dict[str, float] | None] = load_part("shared_tasks", format)
    return task
