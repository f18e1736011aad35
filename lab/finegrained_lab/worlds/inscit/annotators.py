"""How the annotators of InscitWorld answer: by the rule of the case most of the time, in ways of their own otherwise.

Two annotators are two draws: neither is the better one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from finegrained_lab.published.inscit.data import InscitLabel
from finegrained_lab.worlds.inscit.articles import WorldArticle, WorldPassage
from finegrained_lab.worlds.inscit.grammar import Statement, offered, related, told
from finegrained_lab.worlds.inscit.lexicon import SECTION_OF, TOPICS
from finegrained_lab.worlds.inscit.questions import MANY, InscitQuestion, entities_of
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.inscit.conversation import (
    CLARIFICATION,
    DIRECT,
    NO_INFORMATION,
    NOTHING,
    RELEVANT,
    EvidencePassage,
    ResponseType,
)


@dataclass(frozen=True)
class AnnotatorHabits(Settings):
    """How often an annotator departs from the rule of a case; the rest of the time the rule is followed.

    Attributes:
        takes_a_reading: many facts: answers one reading of the question instead of asking back.
        asks_about_two: two facts: asks back instead of giving both.
        gives_one_of_two: two facts: gives only one.
        adds_a_fact: one fact: gives that of another period as well.
        misses: one fact: overlooks it, and tells another fact of the entity.
        finds_nothing: only relaxed facts: says that there is nothing.
        finds_related: nothing: tells another fact of the entity.
        uses_lead: a fact that the lead says too: rests on the lead.
    """

    takes_a_reading: float = 0.5
    asks_about_two: float = 0.12
    gives_one_of_two: float = 0.1
    adds_a_fact: float = 0.12
    misses: float = 0.04
    finds_nothing: float = 0.1
    finds_related: float = 0.3
    uses_lead: float = 0.35

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 0.0 <= getattr(self, one.name) <= 1.0:
                raise ConfigError(f"habits.{one.name} must be a share from 0 to 1, got {getattr(self, one.name)}")
        if self.asks_about_two + self.gives_one_of_two > 1.0 or self.adds_a_fact + self.misses > 1.0:
            raise ConfigError("habits of one case must sum to 1 at most")


@dataclass(frozen=True)
class WorldAnswer:
    """What an annotator answers.

    Attributes:
        response_type: of the answer.
        text: its words.
        statements: what it states; options where it asks back.
        evidence: the passages that it rests on, each once.
    """

    response_type: ResponseType
    text: str
    statements: tuple[Statement, ...]
    evidence: tuple[WorldPassage, ...]

    @property
    def label(self) -> InscitLabel:
        """The same as a record of INSCIT."""
        return InscitLabel(self.response_type, self.text, evidence_of(self.evidence))


def evidence_of(passages: Sequence[WorldPassage]) -> tuple[EvidencePassage, ...]:
    """Passages as records of INSCIT."""
    return tuple(EvidencePassage(one.id, one.text, one.titles) for one in passages)


def answer(question: InscitQuestion, rng: random.Random, habits: AnnotatorHabits) -> WorldAnswer:
    """One annotator's answer."""
    drawn, asked = rng.random(), question.asked
    if question.case == "many":
        if drawn >= habits.takes_a_reading:
            return _asks(question, rng, habits)
        return _tells(question, _reading(asked, rng), rng, habits)
    if question.case == "two":
        if drawn < habits.asks_about_two:
            return _asks(question, rng, habits)
        one = drawn < habits.asks_about_two + habits.gives_one_of_two
        return _tells(question, [rng.choice(asked)] if one else asked, rng, habits)
    if question.case == "one":
        others = _other_facts(question)
        if drawn < habits.misses and others:
            return _relates(question, [rng.choice(others)], rng, habits)
        more = [one for one in _article_of(question, asked[0]).facts[question.attribute] if one not in asked]
        if habits.misses <= drawn < habits.misses + habits.adds_a_fact and more:
            return _tells(question, [*asked, rng.choice(more)], rng, habits)
        return _tells(question, asked, rng, habits)
    if question.case == "relaxable":
        if drawn < habits.finds_nothing:
            return _nothing()
        return _relates(question, question.relaxed, rng, habits)
    others = _other_facts(question)
    return (
        _relates(question, [rng.choice(others)], rng, habits) if others and drawn < habits.finds_related else _nothing()
    )


def _nothing() -> WorldAnswer:
    return WorldAnswer(NOTHING, NO_INFORMATION, (), ())


def _tells(
    question: InscitQuestion, facts: Sequence[Statement], rng: random.Random, habits: AnnotatorHabits
) -> WorldAnswer:
    return WorldAnswer(DIRECT, told(facts), tuple(facts), _passages(question, facts, rng, habits))


def _asks(question: InscitQuestion, rng: random.Random, habits: AnnotatorHabits) -> WorldAnswer:
    evidence = _passages(question, question.asked, rng, habits)
    if len(evidence) == 1:  # the lead tells all of it
        evidence = _passages(question, question.asked, rng, replace(habits, uses_lead=0.0))
    return WorldAnswer(CLARIFICATION, offered(question.options), question.options, evidence)


def _relates(
    question: InscitQuestion, facts: Sequence[Statement], rng: random.Random, habits: AnnotatorHabits
) -> WorldAnswer:
    same = facts[0].attribute == question.attribute
    missing = f"the {question.period} period" if same and question.period else f"the {question.attribute}"
    return WorldAnswer(RELEVANT, related(missing, facts), tuple(facts), _passages(question, facts, rng, habits))


def _reading(asked: Sequence[Statement], rng: random.Random) -> list[Statement]:
    """The facts of one of the entities, if they are few, or one of them."""
    entity = rng.choice(entities_of(asked))
    of_entity = [fact for fact in asked if fact.entity == entity]
    return of_entity if len(of_entity) <= MANY or of_entity[0].attribute == TOPICS else [rng.choice(of_entity)]


def _other_facts(question: InscitQuestion) -> list[Statement]:
    """Facts of the entity that the question does not ask for: of the same section, if it has some, or of any."""
    facts = [
        fact
        for attribute, statements in question.articles[0].facts.items()
        if attribute not in (question.attribute, TOPICS)
        for fact in statements
    ]
    section = SECTION_OF.get(question.attribute)
    return [fact for fact in facts if SECTION_OF[fact.attribute] == section] or facts


def _passages(
    question: InscitQuestion, facts: Sequence[Statement], rng: random.Random, habits: AnnotatorHabits
) -> tuple[WorldPassage, ...]:
    """A passage for each fact, each once."""
    distinct: dict[str, WorldPassage] = {}
    for fact in facts:
        places = _article_of(question, fact).places[fact]
        passage = places[-1] if rng.random() < habits.uses_lead else places[0]
        distinct.setdefault(passage.id, passage)
    return tuple(distinct.values())


def _article_of(question: InscitQuestion, fact: Statement) -> WorldArticle:
    return next(article for article in question.articles if fact in article.places)
