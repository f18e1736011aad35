"""Documents and dialogues of DialogueWorld, drawn from a seed.

Knows how a dialogue moves from place to place and what each turn rests on. Knows no files and no splits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn
from finegrained_rlhf.worlds.dialogue import lexicon

MIN_PASSAGES, MAX_PASSAGES = 6, 10


@dataclass(frozen=True)
class DialogueWorldConfig:
    """What every document and dialogue looks like.

    Attributes:
        passages: fewest and most passages of a document, one place each; 6 to 10.
        facts: facts a passage states, one span each; all passages of a document state the same attributes, each in an
            order of its own.
        questions: fewest and most user turns of a dialogue.
        kinds: how often a user turn after the first one asks in each way (any positive weights): `named` and `place`
            move to another place and name it, `pronoun` stays, `back` returns to the place before.
        skew: each attribute of the lexicon is asked for `skew` times as often as the one before it; 1 = all alike. What
            is asked for more often is the first thing that a model learns of a span, and without it a small one takes
            far longer to look into spans at all.
        echo: how often an agent turn names its place.
        digression: how often an agent turn tells another fact of the document than the one that was asked for, and
            names its place. People do so; what the next turn rests on is then anyone's guess, and what a turn that was
            said rests on is not.
    """

    passages: tuple[int, int] = (MIN_PASSAGES, MAX_PASSAGES)
    facts: int = 5
    questions: tuple[int, int] = (4, 6)
    kinds: Mapping[str, float] = field(
        default_factory=lambda: {"named": 0.05, "pronoun": 0.55, "place": 0.35, "back": 0.05}
    )
    skew: float = 0.75
    echo: float = 0.0
    digression: float = 0.0

    def __post_init__(self) -> None:
        low, high = self.passages
        if not MIN_PASSAGES <= low <= high <= MAX_PASSAGES:
            raise ConfigError(f"world.passages must be within {MIN_PASSAGES} to {MAX_PASSAGES}, got {low} to {high}")
        if not 2 <= self.facts <= len(lexicon.ATTRIBUTES):
            raise ConfigError(f"world.facts must be 2 to {len(lexicon.ATTRIBUTES)}, got {self.facts}")
        if not 1 <= self.questions[0] <= self.questions[1]:
            raise ConfigError(f"world.questions must be 1 or more, lowest first, got {list(self.questions)}")
        if set(self.kinds) != set(lexicon.KINDS) or min(self.kinds.values()) < 0 or self.kinds["pronoun"] <= 0:
            raise ConfigError(
                f"world.kinds needs a weight of 0 or more for each of {', '.join(lexicon.KINDS)} and more than 0 for "
                f"pronoun, got {dict(self.kinds)}"
            )
        if not 0 < self.skew <= 1:
            raise ConfigError(f"world.skew must be above 0 and at most 1, got {self.skew}")
        for name in ("echo", "digression"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"world.{name} must be within 0 to 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class WorldDocument:
    """Places with their facts.

    Attributes:
        id: unique within a world.
        names: one a passage.
        facts: of each passage, (attribute, value) in the order of its spans.
    """

    id: str
    names: tuple[str, ...]
    facts: tuple[tuple[tuple[str, str], ...], ...]

    @property
    def passages(self) -> tuple[Passage, ...]:
        """One passage a place: its name is the title, each fact a span."""
        return tuple(
            Passage(str(i), name, tuple(lexicon.fact(attribute, value) for attribute, value in facts))
            for i, (name, facts) in enumerate(zip(self.names, self.facts, strict=True))
        )

    def find(self, passage: int, attribute: str) -> tuple[Knowledge, str]:
        """Where a passage states an attribute, and its value."""
        names = [name for name, _ in self.facts[passage]]
        span = names.index(attribute)
        return Knowledge(passage, span, span), self.facts[passage][span][1]


def draw_document(name: str, names: Sequence[str], rng: random.Random, config: DialogueWorldConfig) -> WorldDocument:
    """A document about places of `names`."""
    places = rng.sample(list(names), rng.randint(*config.passages))
    attributes = rng.sample(lexicon.ATTRIBUTES, config.facts)
    facts = tuple(
        tuple((attribute, rng.choice(lexicon.VALUES[attribute])) for attribute in rng.sample(attributes, config.facts))
        for _ in places
    )
    return WorldDocument(name, tuple(places), facts)


@dataclass(frozen=True)
class WorldDialogue:
    """A dialogue about one document: user and agent turns in turn, each with its label.

    Attributes:
        id: unique within a world.
        document: what it is about.
        turns: oldest first; both turns of a pair rest on the same span, unless the agent digresses.
        kinds: how each user turn asks, one of `lexicon.KINDS`.
    """

    id: str
    document: WorldDocument
    turns: tuple[Turn, ...]
    kinds: tuple[str, ...]


def draw_dialogue(name: str, document: WorldDocument, rng: random.Random, config: DialogueWorldConfig) -> WorldDialogue:
    """A dialogue: it opens with a named question; every later question asks in a way drawn from `config.kinds`.

    `back` needs a place that was spoken of before the present one; where there is none, the question is a `pronoun`.
    A question never asks for what the one before it asked for.
    """

    def ask(choices: list[str]) -> str:
        return rng.choices(choices, [config.skew ** lexicon.ATTRIBUTES.index(choice) for choice in choices])[0]

    attributes = [attribute for attribute, _ in document.facts[0]]
    present, before, attribute = rng.randrange(len(document.names)), None, ask(attributes)
    turns: list[Turn] = []
    kinds = ["named"]
    for number in range(rng.randint(*config.questions)):
        if number > 0:
            kind = rng.choices(list(config.kinds), list(config.kinds.values()))[0]
            kinds.append("pronoun" if kind == "back" and before is None else kind)
            if kinds[-1] == "back":
                assert before is not None
                present, before = before, present
            elif kinds[-1] in ("named", "place"):
                others = [i for i in range(len(document.names)) if i != present]
                present, before = rng.choice(others), present
            if kinds[-1] in ("named", "pronoun"):
                attribute = ask([other for other in attributes if other != attribute])
        knowledge, value = document.find(present, attribute)
        asked = lexicon.user_turn(kinds[-1], attribute, document.names[present])
        named = document.names[present] if rng.random() < config.echo else None
        turns.append(Turn("user", asked, knowledge))
        if rng.random() < config.digression:
            told = rng.choice(
                [(i, a) for i in range(len(document.names)) for a in attributes if (i, a) != (present, attribute)]
            )
            knowledge, value = document.find(*told)
            named = document.names[told[0]]
        turns.append(Turn("agent", lexicon.agent_turn(value, named), knowledge))
    return WorldDialogue(name, document, tuple(turns), tuple(kinds))
