"""Conversations, their turns, and what people answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from finegrained_rlhf.core.checks import require, require_text

ResponseType = Literal["directAnswer", "clarification", "noAnswerButRelevantInfo", "noAnswerNoRelevantInfo"]
RESPONSE_TYPES: tuple[ResponseType, ...] = get_args(ResponseType)
DIRECT, CLARIFICATION, RELEVANT, NOTHING = RESPONSE_TYPES


@dataclass(frozen=True)
class EvidencePassage:
    """A passage of Wikipedia.

    Attributes:
        id: `Article:n`, with the blanks that the article's name has; `Article:0` is its outline.
        text: of the passage.
        titles: of the article and the sections around it; none for an outline.
    """

    id: str
    text: str
    titles: tuple[str, ...] = ()


@dataclass(frozen=True)
class InscitLabel:
    """What one person answered.

    Attributes:
        response_type: what kind of answer it is.
        response: its words.
        evidence: what it rests on, as listed; a passage may be listed twice.
    """

    response_type: ResponseType
    response: str
    evidence: tuple[EvidencePassage, ...]

    def __post_init__(self) -> None:
        known = ", ".join(RESPONSE_TYPES)
        kind = self.response_type
        require(kind in RESPONSE_TYPES, f"expected one of {known}, got {kind!r}", "responseType")
        require_text(self.response, "response")
        bare = kind != NOTHING or not self.evidence
        require(bare, f"a response of type {NOTHING} rests on nothing, got {len(self.evidence)} passages", "evidence")

    @property
    def passages(self) -> frozenset[str]:
        """The ids of the evidence, each once."""
        return frozenset(passage.id for passage in self.evidence)


@dataclass(frozen=True)
class InscitTurn:
    """A turn to answer.

    Attributes:
        conversation: id of the conversation.
        number: of the turn, from 1.
        context: what was said, the user first and last.
        earlier: the evidence of each earlier agent turn, oldest first.
        labels: one or more answers.
    """

    conversation: str
    number: int
    context: tuple[str, ...]
    earlier: tuple[tuple[EvidencePassage, ...], ...]
    labels: tuple[InscitLabel, ...]

    def __post_init__(self) -> None:
        length = len(self.context)
        require(length % 2 == 1, f"expected an odd number of utterances, user first and last, got {length}", "context")
        for i, text in enumerate(self.context):
            require_text(text, f"context[{i}]")
        agent = length // 2
        problem = f"expected one list for each of {agent} earlier agent turns, got {len(self.earlier)}"
        require(len(self.earlier) == agent, problem, "prevEvidence")
        require(len(self.labels) > 0, "expected at least one label", "labels")

    @property
    def key(self) -> tuple[str, int]:
        """What names the turn in predictions."""
        return self.conversation, self.number

    @property
    def name(self) -> str:
        """The same in one text, for runs and judgements of retrieval."""
        return f"{self.conversation}_{self.number}"

    @property
    def gold(self) -> tuple[str, ...]:
        """The ids of the evidence of all labels, each once, the first label's first."""
        return tuple(dict.fromkeys(passage.id for label in self.labels for passage in label.evidence))

    @property
    def agreed_type(self) -> ResponseType | None:
        """The type that all labels have; None where they differ."""
        types = {label.response_type for label in self.labels}
        return next(iter(types)) if len(types) == 1 else None


@dataclass(frozen=True)
class InscitConversation:
    """A conversation.

    Attributes:
        id: may hold underscores.
        article: that it began with.
        topic: of the article.
        level: how far the article is from the topic; None where the file does not say.
        turns: in order, each continuing the one before it.
    """

    id: str
    article: str
    topic: str
    level: int | None
    turns: tuple[InscitTurn, ...]

    def continued_by(self, turn: int) -> tuple[int, ...]:
        """Which labels of a turn (from 0) the conversation went on with: those whose words the next turn repeats."""
        if turn + 1 >= len(self.turns):
            return ()
        response = self.turns[turn + 1].context[-2]
        return tuple(i for i, label in enumerate(self.turns[turn].labels) if label.response == response)


def turns_of(conversations: Sequence[InscitConversation]) -> list[InscitTurn]:
    """All turns, conversation by conversation."""
    return [turn for conversation in conversations for turn in conversation.turns]
