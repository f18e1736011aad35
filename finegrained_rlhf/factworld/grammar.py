"""The grammar of questions, passages and answers.

    answer   = sentence { " " sentence }
    sentence = clause { ", and " clause } "."
    clause   = "the" ATTRIBUTE "of" ENTITY "is" VALUE
             | ENTITY "has" VALUE "as its" ATTRIBUTE | "as its" ATTRIBUTE ENTITY "has" VALUE
    question = ("What is" | "What are") asked "?" | "Tell me about" asked "."
    asked    = "the" ATTRIBUTE { ("," | "and") "the" ATTRIBUTE } "of" ENTITY

ATTRIBUTE, ENTITY and VALUE are one word each; letter case does not matter. A passage sentence is a sentence of one
clause; a passage may hold other sentences, which state no fact. Any text is an answer: what is no clause is found to be
none. A question of the second form is open: it also asks for what is auxiliary to the attributes that it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage, cut_passages
from finegrained_rlhf.factworld.lexicon import auxiliary_to
from finegrained_rlhf.text.segmentation import Segmenter

_NAME = r"[^\W_]+(?:[-'’][^\W_]+)*"
_CLAUSES = tuple(
    (re.compile(rf"(?:and\s+)?{form}\s*[.,;!?]?", re.IGNORECASE), order)
    for form, order in (
        (rf"the\s+({_NAME})\s+of\s+({_NAME})\s+is\s+({_NAME})", (1, 2, 3)),
        (rf"({_NAME})\s+has\s+({_NAME})\s+as\s+its\s+({_NAME})", (3, 1, 2)),
        (rf"as\s+its\s+({_NAME})\s+({_NAME})\s+has\s+({_NAME})", (1, 2, 3)),
    )
)
"""Each with the groups that hold attribute, entity and value."""
_QUESTION = re.compile(
    rf"\s*(?:what\s+(?:is|are)|(tell\s+me\s+about))\s+(.+?)\s+of\s+({_NAME})\s*(?(1)\.|\?)\s*",
    re.IGNORECASE | re.DOTALL,
)
_ITEM = re.compile(rf"(?:and\s+)?the\s+({_NAME})", re.IGNORECASE)
_ITEM_BREAK = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+", re.IGNORECASE)


@dataclass(frozen=True)
class Clause:
    """What a clause says. The words are as written; `topic` and `says` compare them without regard to case.

    Attributes:
        attribute: `color` in `the color of Arlo is red`.
        entity: `Arlo`.
        value: `red`.
    """

    attribute: str
    entity: str
    value: str

    @property
    def topic(self) -> tuple[str, str]:
        """(attribute, entity), case-folded: what the clause is about."""
        return self.attribute.casefold(), self.entity.casefold()

    @property
    def sentence(self) -> str:
        """The sentence of this one clause, written as the passages write it."""
        return f"The {self.attribute} of {self.entity} is {self.value}."

    def says(self, other: Clause) -> bool:
        """True when `other` states the same fact."""
        return self.topic == other.topic and self.value.casefold() == other.value.casefold()


@dataclass(frozen=True)
class Fact:
    """A fact of a passage and where it stands.

    Attributes:
        clause: what it says.
        passage_id: its passage, counted from 1.
        sentence_id: its sentence, counted from 1 (0 is the title).
    """

    clause: Clause
    passage_id: int
    sentence_id: int


@dataclass(frozen=True)
class FactSource:
    """A question with the facts it can be answered from.

    Attributes:
        entity: whom the question is about.
        asked: the attributes asked for, in the order of the question, without repetition; of an open question after
            them the auxiliary ones.
        facts: the passages' facts by topic; two passages may state one topic with two values.
        auxiliary: the last of `asked`, those that an open question does not name.
    """

    entity: str
    asked: tuple[str, ...]
    facts: Mapping[tuple[str, str], tuple[Fact, ...]]
    auxiliary: tuple[str, ...] = ()

    def asks_for(self, clause: Clause) -> bool:
        """True when the question asks for the clause's attribute (of whatever entity)."""
        return clause.attribute.casefold() in {attribute.casefold() for attribute in self.asked}

    def stated(self, clause: Clause) -> tuple[Fact, ...]:
        """What the passages state on the clause's topic; empty when nothing."""
        return self.facts.get(clause.topic, ())

    def asked_facts(self) -> tuple[Fact, ...]:
        """The asked facts: for each asked attribute that the passages state, the first statement."""
        stated = (self.stated(Clause(attribute, self.entity, "")) for attribute in self.asked)
        return tuple(facts[0] for facts in stated if facts)

    @property
    def gold(self) -> str:
        """The answer that states exactly the asked facts, one sentence each."""
        return " ".join(fact.clause.sentence for fact in self.asked_facts())


def parse_clause(text: str) -> Clause | None:
    """The clause that `text` is, perhaps after `and` and with one punctuation mark; None when it is no clause."""
    for form, order in _CLAUSES:
        if match := form.fullmatch(text.strip()):
            return Clause(*match.group(*order))
    return None


def parse_question(question: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(entity, attributes that a question names, auxiliary ones that it asks for because it is open).

    Raises:
        DataError: the text is no question of this grammar.
    """
    match = _QUESTION.fullmatch(question)
    items = [_ITEM.fullmatch(item) for item in _ITEM_BREAK.split(match.group(2))] if match else []
    names = [item.group(1) for item in items if item]
    if match is None or not names or len(names) < len(items):
        forms = "`What are the A, the B and the C of E?` or `Tell me about the A and the B of E.`"
        raise DataError(f"expected {forms}, got {question!r}", field="question")
    unique = {name.casefold(): name for name in reversed(names)}
    asked = tuple(dict.fromkeys(unique[name.casefold()] for name in names))
    return match.group(3), asked, auxiliary_to(asked) if match.group(1) else ()


def parse_source(question: str, passages: Sequence[Passage]) -> FactSource:
    """The question with the facts of its passages.

    Raises:
        DataError: the question cannot be parsed, or no sentence of the passages states a fact.
    """
    entity, named, auxiliary = parse_question(question)
    facts: dict[tuple[str, str], tuple[Fact, ...]] = {}
    for passage_id, passage in enumerate(passages, start=1):
        for sentence_id, sentence in enumerate(passage.sentences, start=1):
            clause = parse_clause(sentence)
            if clause is not None:
                facts[clause.topic] = (*facts.get(clause.topic, ()), Fact(clause, passage_id, sentence_id))
    if not facts:
        raise DataError("no sentence states a fact, expected `The A of E is V.`", field="passages")
    return FactSource(entity, (*named, *auxiliary), facts, auxiliary)


def split_passages(passages: Sequence[Passage], segmenter: Segmenter) -> tuple[Passage, ...]:
    """The passages with a sentence a fact: one that came as a single text (as in a prompt file) is cut anew."""
    return cut_passages(passages, segmenter.sentences)
