"""Conversations of InscitWorld: what a user asks next, who answers, and which answer the talk goes on with."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from finegrained_lab.published.inscit.data import InscitConversation, InscitTurn
from finegrained_lab.worlds.inscit import lexicon
from finegrained_lab.worlds.inscit.annotators import AnnotatorHabits, WorldAnswer, answer, evidence_of
from finegrained_lab.worlds.inscit.articles import WorldArticle
from finegrained_lab.worlds.inscit.questions import QUESTION_CASES, InscitQuestion, linked_entities
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.inscit.conversation import CLARIFICATION

_FORMS = ("named", "pronoun", "ellipsis", "period", "shift", "linked", "topics")
_FIRST = ("named", "topics")
_TRIES = 200


@dataclass(frozen=True)
class ConversationConfig(Settings):
    """What conversations look like.

    Attributes:
        turns: fewest and most turns.
        cases: how often a question that picks no option has one fact, two, many, only relaxed ones, or nothing (any
            weights).
        forms: how often a user asks in each way where it can be asked so (any weights).
        own_words: how often a question is in the user's words, which no passage has; others are in the passages'.
        says_kind: how often a user who names one of two entities of a name says which kind is meant.
        asks_period: how often a question that can name a period does.
        linked_weight: how often a question is about the linked attribute, where another attribute has 1.
        picks: how often a user picks an option that was offered, instead of asking something else.
        second_label: share of turns that two annotators answer.
        continues_first: how often a conversation goes on with the first of two answers.
    """

    turns: tuple[int, int] = (4, 8)
    cases: Mapping[str, float] = field(
        default_factory=lambda: {"one": 0.355, "two": 0.26, "many": 0.22, "relaxable": 0.14, "nothing": 0.025}
    )
    forms: Mapping[str, float] = field(
        default_factory=lambda: {
            "named": 0.12,
            "pronoun": 0.28,
            "ellipsis": 0.16,
            "period": 0.1,
            "shift": 0.08,
            "linked": 1.0,
            "topics": 0.01,
        }
    )
    own_words: Annotated[float, at_least(0.0), at_most(1.0)] = 0.5
    says_kind: Annotated[float, at_least(0.0), at_most(1.0)] = 0.3
    asks_period: Annotated[float, at_least(0.0), at_most(1.0)] = 0.5
    linked_weight: Annotated[float, at_least(0)] = 3.0
    picks: Annotated[float, at_least(0.0), at_most(1.0)] = 0.8
    second_label: Annotated[float, at_least(0.0), at_most(1.0)] = 0.7
    continues_first: Annotated[float, at_least(0.0), at_most(1.0)] = 0.69

    def __post_init__(self) -> None:
        if not 1 <= self.turns[0] <= self.turns[1]:
            raise ConfigError(f"conversations.turns must be 1 or more, lowest first, got {list(self.turns)}")
        for name, known in (("cases", QUESTION_CASES), ("forms", _FORMS)):
            weights: Mapping[str, float] = getattr(self, name)
            if set(weights) != set(known) or min(weights.values()) < 0 or not sum(weights.values()):
                expected = f"a weight of 0 or more for each of {', '.join(known)}, and one above 0"
                raise ConfigError(f"conversations.{name} needs {expected}, got {dict(weights)}")
        if not self.forms["named"]:
            raise ConfigError("conversations.forms.named must be above 0: a conversation begins so")


@dataclass(frozen=True)
class DrawnTurn:
    """A turn, and what is true of it.

    Attributes:
        question: that the user asks.
        answers: of the annotators, one or two.
        continued: which of them the conversation goes on with.
    """

    question: InscitQuestion
    answers: tuple[WorldAnswer, ...]
    continued: int

    @property
    def said(self) -> WorldAnswer:
        """The answer that the conversation goes on with."""
        return self.answers[self.continued]


@dataclass(frozen=True)
class DrawnConversation:
    """A conversation, and what is true of it.

    Attributes:
        id: unique within a world.
        article: that it begins with.
        turns: in order.
    """

    id: str
    article: WorldArticle
    turns: tuple[DrawnTurn, ...]

    @property
    def record(self) -> InscitConversation:
        """The same as a record of INSCIT."""
        context: list[str] = []
        turns = []
        for number, turn in enumerate(self.turns, start=1):
            context.append(turn.question.text)
            earlier = tuple(evidence_of(one.said.evidence) for one in self.turns[: number - 1])
            labels = tuple(one.label for one in turn.answers)
            turns.append(InscitTurn(self.id, number, tuple(context), earlier, labels))
            context.append(turn.said.text)
        return InscitConversation(self.id, self.article.title, self.article.kind, 1, tuple(turns))


def draw_conversation(
    name: str,
    articles: Sequence[WorldArticle],
    rng: random.Random,
    config: ConversationConfig,
    habits: AnnotatorHabits,
) -> DrawnConversation:
    """A conversation about some of `articles`."""
    user, turns = _User(articles, rng, config), list[DrawnTurn]()
    for _ in range(rng.randint(*config.turns)):
        question = user.ask(turns)
        answers = [answer(question, rng, habits)]
        if rng.random() < config.second_label:
            answers.append(answer(question, rng, habits))
        continued = 0 if len(answers) == 1 or rng.random() < config.continues_first else 1
        turns.append(DrawnTurn(question, tuple(answers), continued))
    return DrawnConversation(name, turns[0].question.articles[0], tuple(turns))


class _User:
    """Asks questions that differ, of cases as often as the configuration says."""

    def __init__(self, articles: Sequence[WorldArticle], rng: random.Random, config: ConversationConfig) -> None:
        self._articles, self._rng, self._config = articles, rng, config
        self._names: dict[str, list[WorldArticle]] = {}
        for article in articles:
            self._names.setdefault(article.name, []).append(article)
        self._by_entity = {f"{one.kind} {one.name}": one for one in articles}

    def ask(self, before: Sequence[DrawnTurn]) -> InscitQuestion:
        """The next question: a pick, or one of a drawn case, or of any case where the drawn one does not come up."""
        if before and before[-1].said.response_type == CLARIFICATION and self._rng.random() < self._config.picks:
            return self._pick(before[-1])
        case = self._rng.choices(list(self._config.cases), list(self._config.cases.values()))[0]
        known = {(one.articles, one.attribute, one.period) for one in (turn.question for turn in before)}
        fallback: InscitQuestion | None = None
        for _ in range(_TRIES):
            question = self._draw(before)
            if question is None or (question.articles, question.attribute, question.period) in known:
                continue
            fallback = question
            if question.case == case:
                break
        if fallback is None:
            raise ConfigError("conversations: no further question; articles.count is too low for so many turns")
        return fallback

    def _pick(self, turn: DrawnTurn) -> InscitQuestion:
        """One of the options that the agent has listed: an entity, or a period."""
        question, option = turn.question, self._rng.choice(turn.said.statements)
        if len({one.entity for one in turn.said.statements}) > 1:
            article = self._by_entity[option.entity]
            return self._made("pick_kind", (article,), question.attribute, question.period)
        article = self._by_entity[option.entity]
        return self._made("pick_period", (article,), question.attribute, option.period)

    def _draw(self, before: Sequence[DrawnTurn]) -> InscitQuestion | None:
        """A question in a drawn form; None where the form does not go on from what was said."""
        forms = {name: weight for name, weight in self._config.forms.items() if before or name in _FIRST}
        form = self._rng.choices(list(forms), list(forms.values()))[0]
        weights = [self._config.linked_weight if one == lexicon.LINKED else 1.0 for one in lexicon.USER_WORDS]
        attribute = self._rng.choices(list(lexicon.USER_WORDS), weights)[0]
        period = self._rng.choice(list(lexicon.PERIODS)) if self._rng.random() < self._config.asks_period else ""
        if form in ("named", "topics"):
            articles = self._new_name(before)
            return self._made(form, articles, attribute, period) if articles else None
        last = before[-1].question
        if form == "linked":
            entities = linked_entities(before[-1].said.statements)
            articles = (self._by_entity[entities[-1]],) if entities else ()
            return self._made(form, articles, attribute, period) if articles else None
        if form == "shift":
            articles = self._new_name(before) if last.attribute != lexicon.TOPICS else ()
            return self._made(form, articles, last.attribute, last.period) if articles else None
        topic = self._topic(before[-1])
        if topic is None:
            return None
        if form == "period":
            period = self._rng.choice(list(lexicon.PERIODS))
            return self._made(form, (topic,), last.attribute, period) if last.attribute != lexicon.TOPICS else None
        return self._made(form, (topic,), attribute, period)

    def _topic(self, turn: DrawnTurn) -> WorldArticle | None:
        """The entity that "it" means: that of the question, or the one that the answer chose; None where it is open."""
        if len(turn.question.articles) == 1:
            return turn.question.articles[0]
        entities = {one.entity for one in turn.said.statements}
        return self._by_entity[entities.pop()] if len(entities) == 1 else None

    def _new_name(self, before: Sequence[DrawnTurn]) -> tuple[WorldArticle, ...]:
        """A name that was not asked about yet: one entity, or both that it may mean."""
        had = {article.name for turn in before for article in turn.question.articles}
        name = self._rng.choice(self._articles).name
        if name in had:
            return ()
        articles = self._names[name]
        if len(articles) > 1 and self._rng.random() < self._config.says_kind:
            return (self._rng.choice(articles),)
        return tuple(self._rng.sample(articles, len(articles)))

    def _made(self, form: str, articles: tuple[WorldArticle, ...], attribute: str, period: str) -> InscitQuestion:
        """The question in one of the wordings that the form has, all in the user's words or all in the passages'."""
        if form == "topics":
            attribute, period = lexicon.TOPICS, ""
        article, own = articles[0], self._rng.random() < self._config.own_words
        name, word, kind, when = article.name, attribute, article.kind, period
        if own:
            kind, when = lexicon.ENTITY_KINDS[kind], lexicon.PERIODS.get(period, "")
            word = "" if attribute == lexicon.TOPICS else self._rng.choice(lexicon.USER_WORDS[attribute])
        if len(articles) == 1 and len(self._names[name]) > 1:
            name = f"the {kind} {name}"
        template = self._rng.choice(lexicon.QUESTION_FORMS[form])
        text = lexicon.question_text(template, word, name, kind, when)
        return InscitQuestion(form, text, articles, attribute, period)
