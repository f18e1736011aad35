"""The facts and dialogues of RewriteWorld, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrained_lab.worlds.rewrite import lexicon
from finegrained_rlhf.conqrr.data import RewriteExample
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings


@dataclass(frozen=True)
class RewriteWorldConfig(Settings):
    """What a world and its dialogues look like.

    Attributes:
        names: how many of the lexicon's names there are.
        attributes: how many of the lexicon's attributes; each name has all of them, one passage each.
        questions: fewest and most questions of a dialogue.
        kinds: how often a question after the first asks in each way (any weights): `named` and `shift` go on to a name
            that the dialogue has not had, `pronoun` and `ellipsis` stay.
    """

    names: int = 30
    attributes: int = 8
    questions: tuple[int, int] = (2, 4)
    kinds: Mapping[str, float] = field(
        default_factory=lambda: {"named": 0.1, "pronoun": 0.4, "ellipsis": 0.3, "shift": 0.2}
    )

    def __post_init__(self) -> None:
        low, high = self.questions
        if not 1 <= low <= high:
            raise ConfigError(f"world.questions must be 1 or more, lowest first, got {list(self.questions)}")
        if not high <= self.names <= len(lexicon.NAMES):
            raise ConfigError(f"world.names must be {high} (questions) to {len(lexicon.NAMES)}, got {self.names}")
        if not 2 <= self.attributes <= len(lexicon.ATTRIBUTES):
            raise ConfigError(f"world.attributes must be 2 to {len(lexicon.ATTRIBUTES)}, got {self.attributes}")
        if set(self.kinds) != set(lexicon.KINDS) or min(self.kinds.values()) < 0 or not sum(self.kinds.values()):
            raise ConfigError(
                f"world.kinds needs a weight of 0 or more for each of {', '.join(lexicon.KINDS)}, and one above 0, "
                f"got {dict(self.kinds)}"
            )


@dataclass(frozen=True)
class WorldFact:
    """One passage of the corpus: an attribute of a name, and its value."""

    attribute: str
    name: str
    value: str

    @property
    def id(self) -> str:
        """The passage's id, `arden-color`."""
        return f"{self.name.lower()}-{self.attribute}"

    @property
    def text(self) -> str:
        """The passage."""
        return lexicon.passage(self.attribute, self.name, self.value)


Facts = Mapping[tuple[str, str], WorldFact]
"""Every fact of a world by name and attribute."""


def draw_facts(rng: random.Random, config: RewriteWorldConfig) -> dict[tuple[str, str], WorldFact]:
    """The facts of a world. No two names share a value, so an answer tells its passage."""
    names = rng.sample(lexicon.NAMES, config.names)
    attributes = rng.sample(lexicon.ATTRIBUTES, config.attributes)
    values = {attribute: rng.sample(lexicon.VALUES[attribute], config.names) for attribute in attributes}
    return {
        (name, attribute): WorldFact(attribute, name, values[attribute][number])
        for number, name in enumerate(names)
        for attribute in attributes
    }


@dataclass(frozen=True)
class Question:
    """A question of a dialogue: how it asks, one of `lexicon.KINDS`, and for which fact."""

    kind: str
    fact: WorldFact

    @property
    def text(self) -> str:
        """What the user says."""
        return lexicon.user_question(self.kind, self.fact.attribute, self.fact.name)


@dataclass(frozen=True)
class RewriteDialogue:
    """A dialogue.

    Attributes:
        id: unique within a world.
        questions: in order; the first one is `named`.
    """

    id: str
    questions: tuple[Question, ...]

    def examples(self) -> list[RewriteExample]:
        """One record a question, with its rewrite, answer and passage."""
        history: list[str] = []
        examples = []
        for turn, question in enumerate(self.questions, start=1):
            fact = question.fact
            example = RewriteExample(
                id=f"{self.id}_{turn}",
                dialogue=self.id,
                turn=turn,
                history=tuple(history),
                question=question.text,
                rewrite=lexicon.rewrite(fact.attribute, fact.name),
                answer=lexicon.agent_answer(fact.value),
                gold=(fact.id,),
                topic_shift=question.kind in lexicon.SHIFTS if turn > 1 else None,
            )
            examples.append(example)
            history += [example.question, lexicon.agent_answer(fact.value)]
        return examples


def draw_rewrite_dialogue(name: str, facts: Facts, rng: random.Random, config: RewriteWorldConfig) -> RewriteDialogue:
    """A dialogue about `facts`. No question asks for the attribute of the one before it, unless it is a `shift`."""
    names = list(dict.fromkeys(key[0] for key in facts))
    attributes = list(dict.fromkeys(key[1] for key in facts))
    count = rng.randint(*config.questions)
    topics = iter(rng.sample(names, count))
    topic, attribute = next(topics), rng.choice(attributes)
    questions = [Question("named", facts[topic, attribute])]
    while len(questions) < count:
        kind = rng.choices(list(config.kinds), list(config.kinds.values()))[0]
        if kind in lexicon.SHIFTS:
            topic = next(topics)
        if kind != "shift":
            attribute = rng.choice([other for other in attributes if other != attribute])
        questions.append(Question(kind, facts[topic, attribute]))
    return RewriteDialogue(name, tuple(questions))
