"""hasConflict: whether a remark contradicts others, by documents' facts, by a language model, or by vectors.

Source: Sun et al., *Resolving Ambiguity through Personalization in Multi-turn LLM Conversations*, section 5.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.outcomes import ReplyError
from finegrained_rlhf.core.generation.owners import AnswerOwner
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.schema import Choice, ReplySchema
from finegrained_rlhf.core.generation.wrappers import drop_kept_answers
from finegrained_rlhf.personalization.prompts import ask_for
from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder
from finegrained_rlhf.personalization.selection.remarks import FeedbackRemark, SourceDocument, documents_left

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
