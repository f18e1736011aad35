"""Which remarks of a user count for a question: sets without a conflict, and what a conflict is.

Source: Sun et al., *Resolving Ambiguity through Personalization in Multi-turn LLM Conversations*, sections 5.5 (the
longest recent run, a greedy set, the largest set) and 5.6 (hasConflict: by documents' facts, by a language model, or
by vectors). Algorithms 1 and 2 are the paper's. Its objective for the second, max |s| with the newest remark in s,
is not what algorithm 2 computes: that takes each older remark as soon as it fits what it has, and so may shut out
several others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.schema import Choice, ReplySchema
from finegrained_rlhf.core.generation.wrappers import AnswerOwner, drop_kept_answers
from finegrained_rlhf.personalization.prompts import ask_for
from finegrained_rlhf.personalization.retrieval import ContextEncoder


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


T = TypeVar("T")
HasConflict = Callable[[Sequence[T], T], bool]
"""Whether a remark contradicts those that were chosen (the oldest first)."""
LARGEST_EXACT = 16
"""Remarks among which the largest set is looked for, the newest: there are 2^(n−1) sets with the newest one."""


@dataclass(frozen=True)
class CoresetSelection:
    """What was chosen of n remarks.

    Attributes:
        chosen: places in the list, from 0, in ascending order.
        satisfiable: whether the newest remark is without conflict by itself; True where there is no remark. Where it is
            False, no set with the newest remark is consistent: `recency_coreset` and `largest_coreset` choose nothing,
            and `greedy_coreset` what it finds among the older ones.
    """

    chosen: tuple[int, ...]
    satisfiable: bool = True


def recency_coreset(remarks: Sequence[T], has_conflict: HasConflict[T]) -> CoresetSelection:
    """Algorithm 1: the longest run up to the newest remark that has no conflict.

    Args:
        remarks: f_1 to f_n, the oldest first.
        has_conflict: of a remark with those after it.
    """
    begin = len(remarks)
    for i in reversed(range(len(remarks))):
        if has_conflict(remarks[begin:], remarks[i]):
            break
        begin = i
    return CoresetSelection(tuple(range(begin, len(remarks))), begin < len(remarks) or not remarks)


def greedy_coreset(remarks: Sequence[T], has_conflict: HasConflict[T]) -> CoresetSelection:
    """Algorithm 2 as printed: from the newest to the oldest, every remark that does not contradict what was chosen.

    Args:
        remarks: f_1 to f_n, the oldest first.
        has_conflict: of a remark with those chosen so far.
    """
    chosen: list[int] = []
    for i in reversed(range(len(remarks))):
        if not has_conflict([remarks[j] for j in chosen], remarks[i]):
            chosen.insert(0, i)
    return CoresetSelection(tuple(chosen), not remarks or len(remarks) - 1 in chosen)


def largest_coreset(remarks: Sequence[T], has_conflict: HasConflict[T], limit: int = LARGEST_EXACT) -> CoresetSelection:
    """Exactly max |s| over consistent s with the newest remark; of equally large ones the most recent.

    A set is consistent where none of its remarks contradicts those of it that are newer. Of two sets of one size, that
    with the newer remark at the first place where they differ, from the newest on, is taken.

    Args:
        remarks: f_1 to f_n, the oldest first.
        has_conflict: of a remark with newer ones.
        limit: the newest so many are looked at, since there may be 2^(limit − 1) questions.
    """
    if not remarks:
        return CoresetSelection(())
    oldest = max(0, len(remarks) - limit)
    best: tuple[int, ...] = ()

    def visit(i: int, chosen: tuple[int, ...]) -> None:
        nonlocal best
        if len(chosen) + i + 1 - oldest <= len(best):
            return
        if i < oldest:
            best = chosen
            return
        if not has_conflict([remarks[j] for j in chosen], remarks[i]):
            visit(i - 1, (i, *chosen))
        if i < len(remarks) - 1:
            visit(i - 1, chosen)

    visit(len(remarks) - 1, ())
    return CoresetSelection(best, bool(best))


_VERDICT = ReplySchema({"conflict": Choice(("yes", "no"))})


class ConflictCheck(Protocol):
    """Says whether a remark can be added to others."""

    def has_conflict(
        self, chosen: Sequence[FeedbackRemark], remark: FeedbackRemark, documents: Sequence[SourceDocument]
    ) -> bool:
        """Whether s ∪ {f} is inconsistent, or no document is left by it.

        Args:
            chosen: s, the oldest first; it may be empty.
            remark: f.
            documents: D.

        Raises:
            FineGrainedError: it cannot be said.
        """
        ...


@dataclass(frozen=True)
class ExactConflicts:
    """A conflict is where no document has all the facts that are stated: D|s ∪ {f} = ∅. Reads facts, asks no model."""

    def has_conflict(
        self, chosen: Sequence[FeedbackRemark], remark: FeedbackRemark, documents: Sequence[SourceDocument]
    ) -> bool:
        """Whether no document is left.

        Raises:
            DataError: a remark whose attribute is not known, or there is no document with facts.
        """
        remarks = [*chosen, remark]
        if not all(one.attribute for one in remarks):
            raise DataError("exact conflicts need what a remark states", field="attribute")
        if not any(one.facts for one in documents):
            raise DataError("exact conflicts need documents with facts", field="facts")
        return not documents_left(documents, remarks)


@dataclass(frozen=True)
class ModelConflicts:
    """Asks a language model for yes or no.

    Attributes:
        asks_model: so that `Coreset` looks at a bounded number of remarks.
        llm: that is asked.
        with_documents: whether it is shown the documents. Without them it can only see what contradicts itself, and not
            that no document fits two remarks about different facts.
    """

    asks_model: ClassVar[bool] = True

    llm: TextGenerator
    with_documents: bool = True

    def clear(self, owner: AnswerOwner | None = None) -> None:
        """Let the language model drop the answers that it keeps, or an owner's."""
        drop_kept_answers(self.llm, owner)

    def has_conflict(
        self, chosen: Sequence[FeedbackRemark], remark: FeedbackRemark, documents: Sequence[SourceDocument]
    ) -> bool:
        """What it says; yes where it says neither, so that the remark is not shown.

        Without documents and with no other remark there is nothing to ask: no.

        Raises:
            FineGrainedError: it is out of reach.
        """
        if not chosen and not self.with_documents:
            return False
        shown = {"documents": [one.text for one in documents]} if self.with_documents else {}
        data = {**shown, "chosen": [one.text for one in chosen], "remark": remark.text}
        try:
            return ask_for(self.llm, "conflict", "", data, _VERDICT)["conflict"] == "yes"
        except ReplyError:
            return True


@dataclass(frozen=True)
class EmbeddedConflicts:
    """A conflict is where the vector of s and that of f have a low cosine. No document is read.

    Attributes:
        encoder: of texts.
        threshold: the lowest cosine, from −1 to 1, of a remark that fits.
    """

    encoder: ContextEncoder
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not -1.0 <= self.threshold <= 1.0:
            raise ConfigError(f"threshold: expected a cosine from -1 to 1, got {self.threshold}")

    def has_conflict(
        self, chosen: Sequence[FeedbackRemark], remark: FeedbackRemark, documents: Sequence[SourceDocument]
    ) -> bool:
        """Whether the cosine is below the threshold; no where s is empty."""
        if not chosen:
            return False
        both = self.encoder.encode(["\n".join(one.text for one in chosen), remark.text])
        return float(both[0] @ both[1]) < self.threshold
