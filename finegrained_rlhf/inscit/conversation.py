"""Conversations whose answers rest on passages: what their parts are given, and what a reader says.

A turn is a context, what was said by the user first and last, and passages of a corpus. From here come the query of a
retriever, what a classifier of response types reads, and what a reader is told, taught and says: `evidence: id1 | id2
answer: RESPONSE`. Source: thesis, chapter 5; INSCIT's reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage

ResponseType = Literal["directAnswer", "clarification", "noAnswerButRelevantInfo", "noAnswerNoRelevantInfo"]
RESPONSE_TYPES: tuple[ResponseType, ...] = get_args(ResponseType)
DIRECT, CLARIFICATION, RELEVANT, NOTHING = RESPONSE_TYPES
TYPE_NAMES: dict[ResponseType, str] = {
    DIRECT: "direct answer",
    CLARIFICATION: "clarification",
    RELEVANT: "no answer but relevant information",
    NOTHING: "no answer and no information",
}
"""What a reader is told that the type of its response is to be (thesis, section 5.5)."""
NO_INFORMATION = "Sorry, I did not find any useful information."
"""What is said where there is nothing to say (the authors' first-turn baseline)."""
EvidenceQuery = Literal["last_turn", "recent", "context", "first_last", "turns", "recent_turns"]
DenseQuery = Literal["turns", "recent_turns"]
"""What a trained dense retriever reads: every utterance, or the last three."""
RECENT = 3
"""Utterances of `recent` and `recent_turns`: what the user said, was answered, and says."""
_JOINT = re.compile(r"\s*(?:evidence\s*:(?P<evidence>.*?))?\banswer\s*:(?P<answer>.*)", re.DOTALL)
_EVIDENCE = re.compile(r"\s*evidence\s*:(?P<evidence>.*)", re.DOTALL)


@dataclass(frozen=True)
class EvidencePassage:
    """A passage of a corpus.

    Attributes:
        id: of the corpus. INSCIT's is `Article:n`, with the blanks of the article's name; `Article:0` is its outline.
        text: of the passage.
        titles: of its document and the sections around it; none for an outline.
    """

    id: str
    text: str
    titles: tuple[str, ...] = ()


def corpus_evidence(passage: Passage) -> EvidencePassage:
    """A passage of a corpus as evidence, its titles apart."""
    titles = tuple(title for title in passage.title.split(PART_SEPARATOR) if title)
    return EvidencePassage(passage.id, passage.text, titles)


def unique(names: Iterable[str]) -> list[str]:
    """Each of them once, in order."""
    return list(dict.fromkeys(names))


def evidence_query(context: Sequence[str], query: EvidenceQuery) -> str:
    """A query.

    Args:
        context: what was said, the user first and last.
        query: `last_turn`; `recent`, the last three utterances; `context`, everything; `first_last`, what the user said
            first and last; `turns`, everything with ` [SEP] ` between the utterances, as dense retrievers read it;
            `recent_turns`, the last three like that.
    """
    if query == "last_turn":
        return context[-1]
    if query == "recent":
        return " ".join(context[-RECENT:])
    if query == "first_last":
        return " ".join(dict.fromkeys((context[0], context[-1])))
    if query == "turns" or query == "recent_turns":
        return PART_SEPARATOR.join(read_turns(context, query))
    return " ".join(context)


def read_turns(context: Sequence[str], query: DenseQuery) -> Sequence[str]:
    """The utterances that a dense retriever reads, oldest first."""
    return context if query == "turns" else context[-RECENT:]


def evidence_text_of(context: Sequence[str], evidence: Sequence[EvidencePassage]) -> str:
    """What a classifier reads of a conversation, the user first and last, and of passages that an answer rests on."""
    passages = {one.id: one for one in evidence}
    lines = [f"user: {context[-1]}"]
    lines += [f"evidence: {' | '.join(one.titles)}: {one.text}" for one in passages.values()]
    for place in range(len(context) - 2, -1, -1):
        lines.append(f"{'agent' if place % 2 else 'user'}: {context[place]}")
    return "\n".join(lines)


def with_type(context: Sequence[str], response_type: ResponseType) -> tuple[str, ...]:
    """A context whose last utterance ends with the type that the response is to have."""
    return (*context[:-1], f"{context[-1]} response type: {TYPE_NAMES[response_type]}")


@dataclass(frozen=True)
class ReaderReply:
    """What a reader replied, taken apart.

    Attributes:
        response: its words; `NO_INFORMATION` where it gave no answer.
        evidence: ids of passages that it was given, each once, in its order.
        unknown: how many ids it named that it was not given.
        repeated: how many it named again.
        answered: whether it gave an answer at all.
    """

    response: str
    evidence: tuple[str, ...]
    unknown: int = 0
    repeated: int = 0
    answered: bool = True


def joint_target(response: str, evidence: Iterable[str]) -> str:
    """`evidence: id1 | id2 answer: RESPONSE`, the ids sorted and each once."""
    ids = " | ".join(sorted(set(evidence)))
    return f"evidence: {ids} answer: {response}" if ids else f"evidence: answer: {response}"


def read_joint(text: str, passages: Sequence[str]) -> ReaderReply:
    """What `joint_target` was to teach, read from what was said.

    White space inside of ids does not count, tokenizers may write it otherwise, but where two passages differ in it
    alone: then the one whose id is written so is meant, else the first.

    Args:
        text: that a reader wrote.
        passages: ids of the passages that it read.
    """
    complete = _JOINT.match(text)
    begun = complete or _EVIDENCE.match(text)
    named = (begun["evidence"] if begun else None) or ""
    exact, bare = ({form(name): name for name in reversed(passages)} for form in (_collapsed, _bare))
    evidence, unknown, repeated = list[str](), 0, 0
    for name in map(_collapsed, named.split("|")):
        meant = exact.get(name) or bare.get(_bare(name))
        if meant is None:
            unknown += bool(name)
        elif meant in evidence:
            repeated += 1
        else:
            evidence.append(meant)
    answer = complete["answer"].strip() if complete else ""
    return ReaderReply(answer or NO_INFORMATION, tuple(evidence), unknown, repeated, bool(answer))


def _collapsed(name: str) -> str:
    return " ".join(name.split())


def _bare(name: str) -> str:
    return "".join(name.split())
