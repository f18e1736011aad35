"""Turns, passages, places in passages, and dialogues: the records that DIALKI, query rewriting and retrieval share.

`check_turns`, `check_passages` and `check_knowledge` check what each system asks of them. The records themselves check
nothing, so that a corpus of millions of passages can be streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from finegrained_rlhf.core.checks import require, require_text

Role = Literal["user", "agent"]
ROLES: tuple[Role, ...] = ("user", "agent")
PART_SEPARATOR = " [SEP] "
"""Between the turns of a query and the titles of a passage, where they are one text."""


@dataclass(frozen=True)
class Knowledge:
    """A run of spans inside one of several passages.

    Attributes:
        passage: index of the passage, from 0.
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
        text: the words, without any role marker. Blank where a data set does not know them (answers in QReCC); most
            systems refuse that.
        knowledge: what the turn itself rests on (an agent turn) or asks about (a user turn), in the passages of its
            dialogue. None where it is not known, or where the turn rests on nothing.
    """

    role: Role
    text: str
    knowledge: Knowledge | None = None


@dataclass(frozen=True)
class Passage:
    """A piece of a document, cut into spans or not.

    Attributes:
        id: unique where it comes from (a corpus, the candidates of a dialogue); "" where passages are told apart by
            their place alone (QA-FEEDBACK).
        title: section title, page title or name; may be empty. Levels are marked by `tokens.TITLE_TOKENS`.
        spans: what knowledge and feedback point at: sentences, or the spans that a data set publishes. A passage that
            is not cut has one span, its whole text.
        sentence_starts: where spans are parts of sentences (Doc2Dial's subsections): the first span of each, beginning
            with 0. Empty = each span is one.
    """

    id: str
    title: str
    spans: tuple[str, ...]
    sentence_starts: tuple[int, ...] = ()

    @classmethod
    def uncut(cls, id: str, text: str, title: str = "") -> Passage:
        """A passage of one span, as retrieval reads it."""
        return cls(id, title, (text,))

    @property
    def text(self) -> str:
        """The spans as they stand, joined with one space."""
        return " ".join(self.spans)

    @property
    def contents(self) -> str:
        """What retrievers read: title and text."""
        return f"{self.title} {self.text}" if self.title else self.text

    @property
    def sentence_bounds(self) -> tuple[tuple[int, int], ...]:
        """The first span of each sentence and the one after its last."""
        bounds = (*(self.sentence_starts or range(len(self.spans))), len(self.spans))
        return tuple(pairwise(bounds))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The text of each sentence: its spans as they stand, joined with one space."""
        return tuple(" ".join(self.spans[first:end]) for first, end in self.sentence_bounds)

    def run(self, begin: int, end: int) -> str:
        """The spans from `begin` to `end` (inclusive) without white space around them, joined with one space."""
        return " ".join(span.strip() for span in self.spans[begin : end + 1])

    def resplit(self, sentences: Callable[[str], Sequence[tuple[int, int]]]) -> Passage:
        """The same passage cut anew: `sentences` maps a text to character spans (`Segmenter.sentences`)."""
        text = self.text
        return Passage(self.id, self.title, tuple(text[start:end] for start, end in sentences(text)))


def cut_passages(
    passages: Sequence[Passage], sentences: Callable[[str], Sequence[tuple[int, int]]]
) -> tuple[Passage, ...]:
    """Passages in sentences: one that came as a single text, as in a prompt file, is cut anew."""
    return tuple(one.resplit(sentences) if len(one.sentences) == 1 else one for one in passages)


@dataclass(frozen=True)
class Dialogue:
    """What was said so far, and the passages that are at hand.

    A system's example is a subclass with the labels that it learns from, or holds one.

    Attributes:
        id: unique within a data set.
        turns: oldest first.
        passages: candidates of what is to be said next; empty where they are not known yet (before retrieval).
    """

    id: str
    turns: tuple[Turn, ...]
    passages: tuple[Passage, ...] = ()

    @property
    def newest_first(self) -> tuple[Turn, ...]:
        """The turns in the order in which most models read them."""
        return self.turns[::-1]

    def text_of(self, knowledge: Knowledge) -> str:
        """The words of a run of spans."""
        return self.passages[knowledge.passage].run(knowledge.begin, knowledge.end)


def check_role(role: Any, field: str) -> None:
    """Raise DataError, naming the field, for a role that nobody has."""
    require(role in ROLES, f"unknown role {role!r}, expected 'user' or 'agent'", field)


def check_turns(turns: Sequence[Turn], blank: bool = False) -> None:
    """Raise DataError, naming the field, unless all roles are known and the last turn is a user's.

    Args:
        turns: oldest first.
        blank: allow agent turns without words.
    """
    for i, turn in enumerate(turns):
        check_role(turn.role, f"turns[{i}].role")
        require_text(turn.text, f"turns[{i}].text", empty=blank and turn.role == "agent")
    require(any(turn.role == "user" for turn in turns), "the dialogue has no user turn", "turns")
    last = len(turns) - 1
    require(
        turns[last].role == "user", "the last turn must be the user's: the next one is the agent's", f"turns[{last}]"
    )


def check_passages(passages: Sequence[Passage]) -> None:
    """Raise DataError, naming the field, unless there are passages, their ids differ and no span is blank."""
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
        starts = passage.sentence_starts
        require(
            not starts or (starts[0] == 0 and starts[-1] < len(passage.spans) and sorted(set(starts)) == list(starts)),
            f"expected numbers of spans that rise from 0, below {len(passage.spans)}, got {list(starts)}",
            f"passages[{i}].sentence_starts",
        )


def check_knowledge(knowledge: Knowledge, passages: Sequence[Passage], field: str) -> None:
    """Raise DataError, naming `field`, unless the passage exists and the run of spans lies in it."""
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
