"""Conversations with known truth: documents, questions, scripted remarks, and who can be meant; read and written.

Source: Sun et al., section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.protocols.sizes import require_name
from finegrained_rlhf.core.checks import as_index, as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.personalization.selection import FeedbackRemark, SourceDocument, documents_left


@dataclass(frozen=True)
class ScriptedTurn:
    """A turn, whatever the answers are.

    Attributes:
        question: q_t.
        attribute: the fact that it asks for; every document has it.
        holding: turns, from 0, whose remarks hold when this one is answered.
        remark: f_t, said after the answers; None where nothing is said.
        one: whether a single answer is asked for.
    """

    question: str
    attribute: str
    holding: tuple[int, ...] = ()
    remark: FeedbackRemark | None = None
    one: bool = False


@dataclass(frozen=True)
class AmbiguousConversation:
    """A conversation about documents that share a name.

    Attributes:
        id: unique in its file.
        scenario: what it is for.
        documents: D, each with the facts that are asked for.
        turns: in their order.
    """

    id: str
    scenario: str
    documents: tuple[SourceDocument, ...]
    turns: tuple[ScriptedTurn, ...]

    def relevant(self, turn: ScriptedTurn) -> tuple[SourceDocument, ...]:
        """z*_t: the documents that can be meant, by the remarks that hold when a turn is answered."""
        held = [remark for i in turn.holding if (remark := self.turns[i].remark) is not None]
        return documents_left(self.documents, held)

    def true_answers(self, turn: ScriptedTurn) -> tuple[str, ...]:
        """The answers of the documents that can be meant, each once, in the documents' order."""
        return tuple(dict.fromkeys(one.facts[turn.attribute] for one in self.relevant(turn)))

    def row(self) -> dict[str, Any]:
        """The conversation as a line of a file."""
        return asdict(self)


def read_conversations(path: str | Path) -> list[AmbiguousConversation]:
    """The conversations of a file, one JSON object a line with the fields of `AmbiguousConversation`.

    Raises:
        DataError: the file is missing or empty, or a record is not as it should be.
    """
    conversations: list[AmbiguousConversation] = []
    seen: set[str] = set()
    for number, row in enumerate(read_jsonl(path)):
        try:
            one = _conversation(row)
            require(one.id not in seen, "expected an id that is used once", "id")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        seen.add(one.id)
        conversations.append(one)
    if not conversations:
        raise DataError("expected at least one conversation", file=path)
    return conversations


def _conversation(row: Mapping[str, Any]) -> AmbiguousConversation:
    name, scenario = (require_name(get_field(row, key), key) for key in ("id", "scenario"))
    documents = tuple(
        _document(as_object(one, f"documents[{i}]"), f"documents[{i}].")
        for i, one in enumerate(as_list(get_field(row, "documents"), "documents"))
    )
    require(len(documents) > 1, "expected at least two documents", "documents")
    require(len({one.id for one in documents}) == len(documents), "expected ids that are used once", "documents")
    turns: list[ScriptedTurn] = []
    for i, one in enumerate(as_list(get_field(row, "turns"), "turns")):
        turns.append(_turn(as_object(one, f"turns[{i}]"), f"turns[{i}].", documents, turns))
    require(bool(turns), "expected at least one turn", "turns")
    conversation = AmbiguousConversation(name, scenario, documents, tuple(turns))
    for i, turn in enumerate(turns):
        require(bool(conversation.relevant(turn)), "expected remarks that one document fits", f"turns[{i}].holding")
    return conversation


def _document(row: Mapping[str, Any], where: str) -> SourceDocument:
    name, text = (require_text(get_field(row, key, where), where + key) for key in ("id", "text"))
    facts = as_object(get_field(row, "facts", where), f"{where}facts")
    return SourceDocument(
        name, text, {str(key): require_text(value, f"{where}facts.{key}") for key, value in facts.items()}
    )


def _turn(
    row: Mapping[str, Any], where: str, documents: Sequence[SourceDocument], before: Sequence[ScriptedTurn]
) -> ScriptedTurn:
    question, attribute = (require_text(get_field(row, key, where), where + key) for key in ("question", "attribute"))
    require(all(attribute in one.facts for one in documents), "expected a fact of every document", f"{where}attribute")
    holding = tuple(as_index(i, f"{where}holding") for i in as_list(row.get("holding", []), f"{where}holding"))
    with_remark = {i for i, turn in enumerate(before) if turn.remark is not None}
    require(with_remark.issuperset(holding), "expected earlier turns with a remark", f"{where}holding")
    one = row.get("one", False)
    require(isinstance(one, bool), "expected true or false", f"{where}one")
    require(not (one and holding), "expected no remarks where one document is picked", f"{where}holding")
    return ScriptedTurn(question, attribute, holding, _remark(row.get("remark"), f"{where}remark"), one)


def _remark(row: Any, where: str) -> FeedbackRemark | None:
    if row is None:
        return None
    row = as_object(row, where)
    names = ("text", "attribute", "value")
    return FeedbackRemark(*(require_text(get_field(row, key, f"{where}."), f"{where}.{key}") for key in names))
