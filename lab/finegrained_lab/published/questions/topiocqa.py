"""TopiOCQA: conversations over Wikipedia whose questions change the topic, with answers and one gold passage each.

Reads the published files (`topiocqa_train.json`, `topiocqa_dev.json`), and the same records as JSON lines, as on the
Hugging Face Hub (`topiocqa_train.jsonl`). They have no human rewrites.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_lab.published.questions.turns import PublishedTurn, conversation_number, examples_of
from finegrained_rlhf.conqrr.data import RewriteReading, as_turn, optional_text
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.dialogue.records import PART_SEPARATOR

NO_PASSAGE = "no gold passage"


def read_topiocqa(path: str | Path) -> RewriteReading:
    """Read a file of TopiOCQA; one example a record, with ids `CONVERSATION_TURN`.

    Records of a conversation may stand anywhere in the file; they are ordered by `Turn_no`. The gold passage is
    `Gold_passage.id`. A later question shifts the topic when its article (`Topic`, else the article in the title of
    its gold passage) is none of an earlier question of the conversation, as everywhere here; the paper's topic
    switches also count returns to an earlier article.

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    rows = read_jsonl(path) if Path(path).suffix == ".jsonl" else read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"expected a JSON array of records, got {type(rows).__name__}", file=path)
    conversations: dict[str, dict[int, PublishedTurn]] = {}
    notes: Counter[str] = Counter()
    for i, row in enumerate(rows):
        try:
            row = as_object(row, "(record)")
            turn, name = _turn(row, notes), conversation_number(row)
            turns = conversations.setdefault(name, {})
            require(turn.turn not in turns, f"turn {turn.turn} of conversation {name} occurs twice", "Turn_no")
        except DataError as error:
            raise error.at(file=path, record=i) from None
        turns[turn.turn] = turn
    examples = []
    for name, turns in conversations.items():
        examples += examples_of(name, [turns[number] for number in sorted(turns)], notes)
    return RewriteReading.of(examples, len(conversations), {}, notes, path)


def _turn(row: Mapping[str, Any], notes: Counter[str]) -> PublishedTurn:
    history = text_list(get_field(row, "Context"), "Context")
    require(
        len(history) % 2 == 0,
        f"expected question, answer, question, answer, …, got {len(history)} utterances",
        "Context",
    )
    passage, title = _passage(row.get("Gold_passage"))
    notes[NO_PASSAGE] += passage is None
    topic = optional_text(row.get("Topic"), "Topic") or title
    return PublishedTurn(
        turn=as_turn(get_field(row, "Turn_no"), "Turn_no"),
        history=tuple(history),
        question=require_text(get_field(row, "Question"), "Question"),
        answer=optional_text(get_field(row, "Answer"), "Answer"),
        gold=() if passage is None else (passage,),
        documents=frozenset() if topic is None else frozenset((topic,)),
        source="topiocqa",
    )


def _passage(value: Any) -> tuple[str | None, str | None]:
    """The id of a gold passage and the article that its title names; None where there is none."""
    if value is None:
        return None, None
    row = as_object(value, "Gold_passage")
    title = optional_text(row.get("title"), "Gold_passage.title")
    return optional_text(get_field(row, "id", "Gold_passage."), "Gold_passage.id"), (
        None if title is None else title.partition(PART_SEPARATOR)[0].strip()
    )
