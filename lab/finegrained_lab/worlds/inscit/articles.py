"""The articles of InscitWorld, drawn from a seed: facts of entities, and the passages that state them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Annotated

from finegrained_lab.worlds.inscit import lexicon
from finegrained_lab.worlds.inscit.grammar import PASSAGE_SENTENCES, Statement
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, at_most

ARTICLE_SHARES: Mapping[str, float] = {"train": 0.6, "dev": 0.15, "test": 0.25}
"""Of the names of a world, how many belong to the conversations of each split."""


@dataclass(frozen=True)
class ArticleConfig(Settings):
    """What the articles of a world look like.

    Attributes:
        count: of articles; 300 make about 4,500 passages.
        shared_names: share of names that two articles of different kinds have.
        sections: fewest and most sections of an article, of the lexicon's 6.
        values: how often an attribute of a section that is there has 0, 1, 2, 3 and 4 values, one a period (any
            weights).
        lead_facts: facts that the lead of an article says again.
        fillers: share of a section's passages that name an attribute of theirs without telling its value.
    """

    count: int = 300
    shared_names: Annotated[float, at_least(0.0), at_most(1.0)] = 0.3
    sections: tuple[int, int] = (4, 5)
    values: Sequence[float] = (0.1, 0.3, 0.3, 0.2, 0.1)
    lead_facts: Annotated[int, at_least(0)] = 3
    fillers: Annotated[float, at_least(0.0), at_most(1.0)] = 0.2

    def __post_init__(self) -> None:
        low, high = self.sections
        if not 1 <= low <= high <= len(lexicon.SECTIONS):
            expected = f"1 to {len(lexicon.SECTIONS)}, lowest first"
            raise ConfigError(f"articles.sections must be {expected}, got {list(self.sections)}")
        most = len(lexicon.FIRST_NAMES) * len(lexicon.LAST_NAMES)
        if not 40 <= self.count <= most:
            raise ConfigError(f"articles.count must be 40 to {most}, got {self.count}")
        if len(self.values) != len(lexicon.PERIODS) + 1 or min(self.values) < 0 or not sum(self.values[1:]):
            expected = f"{len(lexicon.PERIODS) + 1} weights of 0 or more, for 0 to {len(lexicon.PERIODS)} values"
            raise ConfigError(f"articles.values needs {expected}, got {list(self.values)}")


@dataclass(frozen=True)
class WorldPassage:
    """A passage, and what it states.

    Attributes:
        id: `Title:n`.
        titles: of the article, the section and the period; none for an outline.
        text: its words.
        facts: that it states.
    """

    id: str
    titles: tuple[str, ...]
    text: str
    facts: tuple[Statement, ...]


@dataclass(frozen=True, eq=False)
class WorldArticle:
    """An article about one entity. Two are the same where they are one object.

    Attributes:
        title: the entity's name, with its kind where another entity has the name.
        kind: of the entity.
        name: of the entity.
        split: whose conversations speak of it.
        passages: outline, lead, and those of sections.
    """

    title: str
    kind: str
    name: str
    split: str
    passages: tuple[WorldPassage, ...] = field(repr=False)

    @cached_property
    def facts(self) -> Mapping[str, tuple[Statement, ...]]:
        """The facts of each attribute, in order of time; none for an attribute that the article does not tell."""
        by_attribute: dict[str, list[Statement]] = {}
        for passage in self.passages:
            for fact in passage.facts:
                known = by_attribute.setdefault(fact.attribute, [])
                if fact not in known:
                    known.append(fact)
        order = ["", *lexicon.PERIODS]
        return {
            name: tuple(sorted(facts, key=lambda one: order.index(one.period))) for name, facts in by_attribute.items()
        }

    @cached_property
    def places(self) -> Mapping[Statement, tuple[WorldPassage, ...]]:
        """Of each fact the passages that state it, the lead last."""
        by_fact: dict[Statement, list[WorldPassage]] = {}
        for passage in (self.passages[0], *self.passages[2:], self.passages[1]):
            for fact in passage.facts:
                by_fact.setdefault(fact, []).append(passage)
        return {fact: tuple(passages) for fact, passages in by_fact.items()}


def draw_articles(rng: random.Random, config: ArticleConfig) -> list[WorldArticle]:
    """The articles of a world. A linked value is an entity of the same split."""
    entities = _draw_entities(rng, config)
    articles = []
    for entity in entities:
        others = [other for other in entities if other.split == entity.split and other.name != entity.name]
        articles.append(_draw_article(entity, others, rng, config))
    return articles


@dataclass(frozen=True)
class _Entity:
    title: str
    kind: str
    name: str
    split: str


def _draw_entities(rng: random.Random, config: ArticleConfig) -> list[_Entity]:
    """Names of two articles and of one, by split in the order of `ARTICLE_SHARES`."""
    words = max(lexicon.FEWEST_NAME_WORDS, math.isqrt(config.count - 1) + 1)  # of each list, in use
    names = [" ".join(pair) for pair in product(lexicon.FIRST_NAMES[:words], lexicon.LAST_NAMES[:words])]
    rng.shuffle(names)
    pairs = round(config.count * config.shared_names / (1 + config.shared_names))
    shared = [True] * pairs + [False] * (config.count - 2 * pairs)
    entities = []
    for both in (True, False):
        group = [names.pop() for is_shared in shared if is_shared == both]
        start, reached = 0, 0.0
        for split, share in ARTICLE_SHARES.items():
            reached += share
            end = round(reached * len(group))
            for name in group[start:end]:
                kinds = rng.sample(list(lexicon.ENTITY_KINDS), 2 if both else 1)
                entities += [_Entity(f"{name} ({kind})" if both else name, kind, name, split) for kind in kinds]
            start = end
    rng.shuffle(entities)
    return entities


def _draw_article(
    entity: _Entity, others: Sequence[_Entity], rng: random.Random, config: ArticleConfig
) -> WorldArticle:
    chosen = set(rng.sample(list(lexicon.SECTIONS), rng.randint(*config.sections)))
    sections = [section for section in lexicon.SECTIONS if section in chosen]
    facts = [fact for section in sections for fact in _draw_facts(entity, section, others, rng, config)]
    sections = [section for section in sections if any(lexicon.SECTION_OF[one.attribute] == section for one in facts)]
    topics = tuple(Statement(entity.kind, entity.name, lexicon.TOPICS, "", section.lower()) for section in sections)
    outline, parts = [f"Topics of the {entity.kind} {entity.name}"], list[WorldPassage]()
    for section in sections:
        outline.append(f"- {section}")
        for period in lexicon.PERIODS:
            here = [fact for fact in facts if fact.period == period and lexicon.SECTION_OF[fact.attribute] == section]
            if here:
                heading = f"{period.capitalize()} period"
                outline.append(f"- - {heading}")
                rng.shuffle(here)
                text = _section_text(here, section, rng, config)
                name = f"{entity.title}:{len(parts) + 2}"
                parts.append(WorldPassage(name, (entity.title, section, heading), text, tuple(here)))
    repeated = rng.sample(facts, min(config.lead_facts, len(facts)))
    lead = " ".join(
        [f"{entity.name} is a {entity.kind}.", *(_sentence(one, f"the {one.kind}", rng) for one in repeated)]
    )
    passages = (
        WorldPassage(f"{entity.title}:0", (), "\n".join(outline), topics),
        WorldPassage(f"{entity.title}:1", (entity.title,), lead, tuple(repeated)),
        *parts,
    )
    return WorldArticle(entity.title, entity.kind, entity.name, entity.split, passages)


def _draw_facts(
    entity: _Entity, section: str, others: Sequence[_Entity], rng: random.Random, config: ArticleConfig
) -> list[Statement]:
    facts = []
    for attribute in lexicon.SECTIONS[section]:
        count = rng.choices(range(len(config.values)), config.values)[0]
        if attribute == lexicon.LINKED:
            values = [f"{one.kind} {one.name}" for one in rng.sample(others, min(count, len(others)))]
        else:
            values = rng.sample(lexicon.VALUES[attribute], count)
        periods = rng.sample(list(lexicon.PERIODS), len(values))
        facts += [
            Statement(entity.kind, entity.name, attribute, period, value)
            for period, value in zip(periods, values, strict=True)
        ]
    return facts


def _section_text(facts: Sequence[Statement], section: str, rng: random.Random, config: ArticleConfig) -> str:
    """The first sentence names the entity with its kind, the others say only the kind."""
    sentences = [_sentence(one, f"the {one.entity if one is facts[0] else one.kind}", rng) for one in facts]
    stated = {fact.attribute for fact in facts}
    unstated = [attribute for attribute in lexicon.SECTIONS[section] if attribute not in stated]
    if unstated and rng.random() < config.fillers:
        sentences.append(lexicon.UNKNOWN_FILLER.format(attribute=rng.choice(unstated)))
    return " ".join(sentences)


def _sentence(fact: Statement, entity: str, rng: random.Random) -> str:
    template = rng.choice(PASSAGE_SENTENCES)
    return template.format(attribute=fact.attribute, entity=entity, period=fact.period, value=fact.value)
