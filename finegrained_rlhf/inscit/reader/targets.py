"""What a reader is taught to say, and what is read from what it says.

The form is `evidence: id1 | id2 answer: RESPONSE` (thesis, section 5.4; INSCIT's reader).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.inscit.data.records import CLARIFICATION, DIRECT, NOTHING, RELEVANT, ResponseType
from finegrained_rlhf.inscit.evaluation.predictions import NO_INFORMATION

ReaderTask = Literal["joint", "response"]
TYPE_NAMES: dict[ResponseType, str] = {
    DIRECT: "direct answer",
    CLARIFICATION: "clarification",
    RELEVANT: "no answer but relevant information",
    NOTHING: "no answer and no information",
}
"""What a reader is told that the type of its response is to be (thesis, section 5.5)."""
_JOINT = re.compile(r"\s*(?:evidence\s*:(?P<evidence>.*?))?\banswer\s*:(?P<answer>.*)", re.DOTALL)
_EVIDENCE = re.compile(r"\s*evidence\s*:(?P<evidence>.*)", re.DOTALL)


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


def with_type(context: Sequence[str], response_type: ResponseType) -> tuple[str, ...]:
    """A context whose last utterance ends with the type that the response is to have."""
    return (*context[:-1], f"{context[-1]} response type: {TYPE_NAMES[response_type]}")
