"""What a question of InscitWorld asks for, and which kind of answer the articles allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from finegrained_lab.worlds.inscit.articles import WorldArticle
from finegrained_lab.worlds.inscit.grammar import Statement
from finegrained_lab.worlds.inscit.lexicon import LINKED, TOPICS

QuestionCase = Literal["one", "two", "many", "relaxable", "nothing"]
QUESTION_CASES: tuple[QuestionCase, ...] = get_args(QuestionCase)
MANY = 2
"""Values above which a question is worth asking back."""


@dataclass(frozen=True)
class InscitQuestion:
    """A question.

    Attributes:
        form: one of the lexicon's ways of asking.
        text: what the user says.
        articles: of the entities that it may mean: one, or two of one name.
        attribute: that it asks for.
        period: that it asks about; empty where it leaves that open.
    """

    form: str
    text: str
    articles: tuple[WorldArticle, ...]
    attribute: str
    period: str = ""

    @property
    def asked(self) -> tuple[Statement, ...]:
        """The facts that satisfy it."""
        return tuple(fact for fact in self._of_attribute if self.period in ("", fact.period))

    @property
    def relaxed(self) -> tuple[Statement, ...]:
        """Where no fact satisfies it: those that would if it did not name a period, two of one entity at most."""
        if self.asked:
            return ()
        near = self._of_attribute
        return tuple(fact for fact in near if fact.entity == near[0].entity)[:MANY]

    @property
    def case(self) -> QuestionCase:
        """What there is: one fact, two of one entity, more (or of two entities), only relaxed ones, or nothing.

        The topics of an entity are one fact.
        """
        asked = self.asked
        if len(entities_of(asked)) > 1:
            return "many"
        if len(asked) == 1 or (asked and self.attribute == TOPICS):
            return "one"
        if asked:
            return "two" if len(asked) <= MANY else "many"
        return "relaxable" if self.relaxed else "nothing"

    @property
    def options(self) -> tuple[Statement, ...]:
        """The facts that satisfy it, without their values: what a question back lists."""
        return tuple(dict.fromkeys(fact.option for fact in self.asked))

    @property
    def standalone(self) -> str:
        """The question in the words of passages, with its entity named: what a perfect rewrite asks a search for."""
        kind = f"{self.articles[0].kind} " if len(self.articles) == 1 else ""
        when = f" in the {self.period} period" if self.period else ""
        return f"{self.attribute} of the {kind}{self.articles[0].name}{when}"

    @property
    def _of_attribute(self) -> tuple[Statement, ...]:
        return tuple(fact for article in self.articles for fact in article.facts.get(self.attribute, ()))


def entities_of(statements: Sequence[Statement]) -> list[str]:
    """The entities that statements are about, each once."""
    return list(dict.fromkeys(statement.entity for statement in statements))


def linked_entities(statements: Sequence[Statement]) -> list[str]:
    """The entities, with their kinds, that statements have as their values."""
    return [statement.value for statement in statements if statement.attribute == LINKED and statement.value]
