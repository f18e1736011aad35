"""What users say of answers, and the documents that answers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FeedbackRemark:
    """A remark f_t, in which a user states something about what they have in mind.

    Attributes:
        text: in the user's words.
        attribute: which fact it states, such as `birthday`; empty where nobody has read it so far.
        value: of the attribute; empty likewise.
    """

    text: str
    attribute: str = ""
    value: str = ""


@dataclass(frozen=True)
class SourceDocument:
    """A document d about one entity.

    Attributes:
        id: unique among those that are given together.
        text: what a language model reads.
        facts: value by attribute, as a table has them; empty where there is none. No prompt has them.
    """

    id: str
    text: str
    facts: Mapping[str, str] = field(default_factory=dict)


def documents_left(
    documents: Sequence[SourceDocument], remarks: Sequence[FeedbackRemark]
) -> tuple[SourceDocument, ...]:
    """D|s: the documents whose facts are those that every remark of s states, in their order."""
    return tuple(one for one in documents if all(one.facts.get(remark.attribute) == remark.value for remark in remarks))
