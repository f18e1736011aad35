"""A dialogue to be answered: with the candidate passages, what the answer rests on, and the answer where it is known.

A broken record raises `DataError` with the record's id and the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.core.checks import require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import (
    Dialogue,
    Knowledge,
    Passage,
    check_knowledge,
    check_passages,
    check_turns,
)

GoldEntries = Literal["one", "all", "each"]
"""Of several gold places of a dialogue: one, drawn anew at every step; all, of which one is enough; each by itself."""
NO_PASSAGE = Passage("no_passages_used", "no_passages_used", ("no_passages_used",))
"""The candidate that stands for an answer without knowledge (Wizard of Wikipedia). It is a passage like any other."""


@dataclass(frozen=True)
class DialogueExample(Dialogue):
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
        references: the texts that an answer is compared with, where the data set's own scoring does not compare it with
            the words of the gold entries (Doc2Dial). Empty = it does.
        also_right: passages that are right as well, though the example does not teach them: never drawn as wrong ones.

    Raises:
        DataError: naming the record and the field.
    """

    gold: tuple[Knowledge, ...] = ()
    response: str | None = None
    unseen: bool | None = None
    no_passage: bool = False
    source: str = ""
    references: tuple[str, ...] = ()
    also_right: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        try:
            require_text(self.id, "id")
            check_turns(self.turns)
            check_passages(self.passages)
            for i, turn in enumerate(self.turns):
                if turn.knowledge is not None:
                    check_knowledge(turn.knowledge, self.passages, f"turns[{i}].knowledge")
            for i, knowledge in enumerate(self.gold):
                check_knowledge(knowledge, self.passages, f"gold[{i}]")
            require(len(set(self.gold)) == len(self.gold), "one place is named twice", "gold")
            for i, number in enumerate(self.also_right):
                there = f"passage {number} does not exist, expected 0 to {len(self.passages) - 1}"
                require(0 <= number < len(self.passages), there, f"also_right[{i}]")
            for i, reference in enumerate(self.references):
                require_text(reference, f"references[{i}]")
            require(not self.references or bool(self.gold), "expected none where there is no gold", "references")
            if self.response is not None:
                require_text(self.response, "response", empty=True)
            if self.no_passage:
                right = len(self.gold) == 1 and self.passages[self.gold[0].passage] == NO_PASSAGE
                require(right, f"expected the one gold passage to be {NO_PASSAGE.id!r}", "no_passage")
        except DataError as error:
            raise error.at(record=self.id if isinstance(self.id, str) and self.id else None) from None

    @property
    def gold_texts(self) -> tuple[str, ...]:
        """The words of each gold entry."""
        return tuple(self.text_of(knowledge) for knowledge in self.gold)

    @property
    def reference_texts(self) -> tuple[str, ...]:
        """What an answer is compared with: the best match counts. Empty where the example is not labelled."""
        return self.references or self.gold_texts
