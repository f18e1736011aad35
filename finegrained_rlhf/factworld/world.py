"""Passages, questions and gold answers over typed facts, drawn from a seed.

A world is a list of `Item`s: one entity with at least nine facts, each in a sentence of its own, and a question that
asks for some of them. Knows nothing of errors, writers or models.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.factworld import lexicon

MIN_FACTS = 9


@dataclass(frozen=True)
class WorldConfig(Settings):
    """What every item of a world looks like.

    Attributes:
        facts: facts a passage states, one sentence each; 9 to the number of attributes.
        min_asked: fewest attributes a question asks for.
        max_asked: most attributes a question asks for.
        open_rate: share of questions that are open: they also ask for what is auxiliary to the attributes they name.
        forms: in how many ways answers state a fact, 1 to 3 (`lexicon.FORMS`); passages have one.
    """

    facts: int = MIN_FACTS
    min_asked: int = 2
    max_asked: int = 6
    open_rate: Annotated[float, at_least(0), at_most(1)] = 0.0
    forms: int = 1

    def __post_init__(self) -> None:
        if not MIN_FACTS <= self.facts <= len(lexicon.ATTRIBUTES):
            raise ConfigError(f"world.facts must be {MIN_FACTS} to {len(lexicon.ATTRIBUTES)}, got {self.facts}")
        if not 1 <= self.min_asked <= self.max_asked <= self.facts:
            raise ConfigError(
                f"need 1 <= world.min_asked <= world.max_asked <= world.facts, "
                f"got {self.min_asked}, {self.max_asked}, {self.facts}"
            )
        if not 1 <= self.forms <= len(lexicon.FORMS):
            raise ConfigError(f"world.forms must be 1 to {len(lexicon.FORMS)}, got {self.forms}")


@dataclass(frozen=True)
class Item:
    """One question about one passage.

    Attributes:
        id: unique within the world (`dev-00012`).
        entity: what the passage is about; also its title.
        facts: (attribute, value) in the order of the passage's sentences, which count from 1 (the title is 0).
        asked: the attributes that the question names, in its order.
        is_open: whether it asks for what is auxiliary to them too.
    """

    id: str
    entity: str
    facts: tuple[tuple[str, str], ...]
    asked: tuple[str, ...]
    is_open: bool = False

    def value(self, attribute: str) -> str | None:
        """The passage's value of `attribute`, None where the passage does not state it."""
        return dict(self.facts).get(attribute)

    @property
    def question(self) -> str:
        """The question in words."""
        return lexicon.entity_question(self.asked, self.entity, self.is_open)

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """The attributes that an open question asks for without naming them."""
        return lexicon.auxiliary_to(self.asked) if self.is_open else ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The passage's sentences, without the title."""
        return tuple(lexicon.sentence([lexicon.clause(a, self.entity, v)]) for a, v in self.facts)

    @property
    def gold(self) -> str:
        """The answer that states exactly the asked facts, auxiliary ones last, one sentence each."""
        values = dict(self.facts)
        stated = (a for a in (*self.asked, *self.auxiliary) if a in values)
        return " ".join(lexicon.sentence([lexicon.clause(a, self.entity, values[a])]) for a in stated)


def make_items(count: int, prefix: str, rng: random.Random, config: WorldConfig, taken: set[object]) -> list[Item]:
    """Draw `count` items that differ from each other and from those in `taken`.

    Args:
        count: how many.
        prefix: ids are `{prefix}-{number:05d}`.
        rng: the source of all randomness.
        config: what an item looks like.
        taken: the worlds (entity and set of facts) drawn so far; the new ones are added, so that splits drawn with one
            set share no passage and no question-and-passage pair.
    """
    items: list[Item] = []
    while len(items) < count:
        entity = rng.choice(lexicon.ENTITIES)
        attributes = rng.sample(lexicon.ATTRIBUTES, config.facts)
        facts = tuple((attribute, rng.choice(lexicon.VALUES[attribute])) for attribute in attributes)
        world = (entity, frozenset(facts))
        if world in taken:
            continue
        taken.add(world)
        asked = tuple(rng.sample(attributes, rng.randint(config.min_asked, config.max_asked)))
        is_open = config.open_rate > 0 and rng.random() < config.open_rate
        items.append(Item(f"{prefix}-{len(items):05d}", entity, facts, asked, is_open))
    return items
