"""QReCC: dialogues from QuAC, Natural Questions and TREC CAsT with rewrites, answers and, in part, gold passages.

Reads the two published forms: the original (`qrecc_train.json`: `Rewrite`, `Answer`) and that of the SCAI shared task
(`scai-qrecc21-*-turns.json`: `Truth_rewrite`, `Truth_answer`, `Truth_passages`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_lab.published.questions.turns import PublishedTurn, conversation_number, examples_of
from finegrained_rlhf.conqrr.data import RewriteReading, as_turn, optional_text
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json

_PART = re.compile(r"_p\d+$")
"""What the id of a passage adds to the address of its page: `https://…/page_p12`."""


def read_qrecc(path: str | Path) -> RewriteReading:
    """Read a file of QReCC, either form; one example a record.

    Records of a conversation may stand anywhere in the file; they are ordered by `Turn_no`, whose gaps are kept. A
    blank rewrite or answer is none. Ids are `Conversation_no` and `Turn_no` joined by an underscore.

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"expected a JSON array of records, got {type(rows).__name__}", file=path)
    dialogues: dict[str, dict[int, PublishedTurn]] = {}
    for i, row in enumerate(rows):
        try:
            row = as_object(row, "(record)")
            turn = _turn(row)
            name = conversation_number(row)
            turns = dialogues.setdefault(name, {})
            require(turn.turn not in turns, f"turn {turn.turn} of conversation {name} occurs twice", "Turn_no")
        except DataError as error:
            raise error.at(file=path, record=i) from None
        turns[turn.turn] = turn
    notes: Counter[str] = Counter()
    examples = []
    for name, turns in dialogues.items():
        examples += examples_of(name, [turns[number] for number in sorted(turns)], notes)
    return RewriteReading.of(examples, len(dialogues), {}, notes, path)


def _turn(row: Mapping[str, Any]) -> PublishedTurn:
    history = text_list(get_field(row, "Context"), "Context")
    require(
        len(history) % 2 == 0,
        f"expected question, answer, question, answer, …, got {len(history)} utterances",
        "Context",
    )
    gold = text_list(_either(row, "Passages", ()) or [], "Passages or Truth_passages")
    return PublishedTurn(
        turn=as_turn(get_field(row, "Turn_no"), "Turn_no"),
        history=tuple(history),
        question=require_text(get_field(row, "Question"), "Question"),
        rewrite=optional_text(_either(row, "Rewrite"), "Rewrite or Truth_rewrite"),
        answer=optional_text(_either(row, "Answer"), "Answer or Truth_answer"),
        gold=tuple(dict.fromkeys(gold)),
        documents=frozenset(_PART.sub("", passage) for passage in gold),
        source=require_text(row.get("Conversation_source", ""), "Conversation_source", empty=True),
    )


def _either(row: Mapping[str, Any], name: str, *default: Any) -> Any:
    """`row["Truth_name"]` in the shared task's form, else `row["Name"]`."""
    truth = f"Truth_{name.lower()}"
    return row[truth] if truth in row else row.get(name, default[0]) if default else get_field(row, name)
