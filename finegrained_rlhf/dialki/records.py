"""A dialogue with the passages of its document, and the knowledge labels of its turns.

Knows what a valid record is, whoever made it (a reader, DialogueWorld, a test). Does not know files, tokens or models.
A broken record raises `DataError` with the record's id and the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.records import require, require_text

Role = Literal["user", "agent"]
ROLES: tuple[Role, ...] = ("user", "agent")


@dataclass(frozen=True)
class Knowledge:
    """A run of spans inside one passage.

    Attributes:
        passage: index into `DialogueExample.passages`, from 0.
        begin: index of the first span of the passage, from 0.
        end: index of the last span, inclusive.
    """

    passage: int
    begin: int
    end: int


@dataclass(frozen=True)
class Turn:
    """One utterance.

    Attributes:
        role: who speaks.
        text: the words, without any role marker.
        knowledge: what the turn itself rests on (an agent turn) or asks about (a user turn): the label of the history
            loss. None where it is not known, or where the turn rests on nothing.
    """

    role: Role
    text: str
    knowledge: Knowledge | None = None


@dataclass(frozen=True)
class Passage:
    """One candidate passage, cut into the spans that knowledge is made of.

    Attributes:
        id: unique within the example.
        title: section title, page title or name; may be empty.
        spans: one span or more, none of them blank (sentences, or the spans that a data set publishes).
        sentences: where spans are parts of sentences (Doc2Dial's subsections): the first span of each, beginning with
            0. Empty = each span is one.
    """

    id: str
    title: str
    spans: tuple[str, ...]
    sentences: tuple[int, ...] = ()

    def text(self, begin: int, end: int) -> str:
        """The spans from `begin` to `end` (inclusive), joined with one space."""
        return " ".join(span.strip() for span in self.spans[begin : end + 1])


NO_PASSAGE = Passage("no_passages_used", "no_passages_used", ("no_passages_used",))
"""The candidate that stands for an answer without knowledge (Wizard of Wikipedia). It is a passage like any other."""


@dataclass(frozen=True)
class DialogueExample:
    """A dialogue up to a user turn, the passages the next agent turn may rest on, and what it does rest on.

    Attributes:
        id: unique within a data set.
        turns: oldest first; the last one is a user turn.
        passages: the candidates, in document order; at least one. Ids are unique.
        gold: what the next agent turn rests on. Several entries are several places (sentences of different reviews,
            a reference that crosses two sections). Empty = not labelled.
        response: the next agent turn in words; None where it is not known.
        unseen: whether the document or topic is absent from training; None where the data set does not say.
        no_passage: the next agent turn rests on no knowledge: `gold` points at the candidate `NO_PASSAGE`.
        source: where the record comes from (file or document), for reports and error messages.

    Raises:
        DataError: naming the record and the field.
    """

    id: str
    turns: tuple[Turn, ...]
    passages: tuple[Passage, ...]
    gold: tuple[Knowledge, ...] = ()
    response: str | None = None
    unseen: bool | None = None
    no_passage: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        try:
            require_text(self.id, "id")
            _check_turns(self.turns)
            _check_passages(self.passages)
            for i, turn in enumerate(self.turns):
                if turn.knowledge is not None:
                    _check_knowledge(turn.knowledge, self.passages, f"turns[{i}].knowledge")
            for i, knowledge in enumerate(self.gold):
                _check_knowledge(knowledge, self.passages, f"gold[{i}]")
            require(len(set(self.gold)) == len(self.gold), "one place is named twice", "gold")
            if self.response is not None:
                require_text(self.response, "response", empty=True)
            if self.no_passage:
                right = len(self.gold) == 1 and self.passages[self.gold[0].passage] == NO_PASSAGE
                require(right, f"expected the one gold passage to be {NO_PASSAGE.id!r}", "no_passage")
        except DataError as error:
            raise error.at(record=self.id if isinstance(self.id, str) and self.id else None) from None

    def text_of(self, knowledge: Knowledge) -> str:
        """The words of a run of spans."""
        return self.passages[knowledge.passage].text(knowledge.begin, knowledge.end)

    @property
    def gold_texts(self) -> tuple[str, ...]:
        """The words of each gold entry."""
        return tuple(self.text_of(knowledge) for knowledge in self.gold)


def _check_turns(turns: Sequence[Turn]) -> None:
    for i, turn in enumerate(turns):
        require(turn.role in ROLES, f"unknown role {turn.role!r}, expected 'user' or 'agent'", f"turns[{i}].role")
        require_text(turn.text, f"turns[{i}].text")
    require(any(turn.role == "user" for turn in turns), "the dialogue has no user turn", "turns")
    last = len(turns) - 1
    require(
        turns[last].role == "user", "the last turn must be the user's: the next one is the agent's", f"turns[{last}]"
    )


def _check_passages(passages: Sequence[Passage]) -> None:
    require(len(passages) > 0, "expected at least one passage, got none", "passages")
    ids: set[str] = set()
    for i, passage in enumerate(passages):
        require_text(passage.id, f"passages[{i}].id")
        require(passage.id not in ids, f"passage id {passage.id!r} occurs twice", f"passages[{i}].id")
        ids.add(passage.id)
        require_text(passage.title, f"passages[{i}].title", empty=True)
        require(len(passage.spans) > 0, "the passage is empty, expected at least one span", f"passages[{i}].spans")
        for j, span in enumerate(passage.spans):
            require_text(span, f"passages[{i}].spans[{j}]")
        starts = passage.sentences
        require(
            not starts or (starts[0] == 0 and starts[-1] < len(passage.spans) and sorted(set(starts)) == list(starts)),
            f"expected numbers of spans that rise from 0, below {len(passage.spans)}, got {list(starts)}",
            f"passages[{i}].sentences",
        )


def _check_knowledge(knowledge: Knowledge, passages: Sequence[Passage], field: str) -> None:
    require(
        0 <= knowledge.passage < len(passages),
        f"passage {knowledge.passage} does not exist, expected 0 to {len(passages) - 1}",
        f"{field}.passage",
    )
    last = len(passages[knowledge.passage].spans) - 1
    require(
        0 <= knowledge.begin <= knowledge.end <= last,
        f"spans {knowledge.begin} to {knowledge.end} do not exist in passage {knowledge.passage}, "
        f"expected 0 <= begin <= end <= {last}",
        field,
    )
