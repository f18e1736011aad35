"""The imperfect writer, whose answers the first policy learns from.

Its errors are habits, not slips: a slip vanishes when a policy trained on it decodes greedily, a habit that wins more
often than not survives. Three habits, one for each category of error:

- memory (C2): for some attributes it tends to give the popular value, whatever the passage says;
- rambling (C1): after some attributes it tends to go on with `, and the B of X is V` about a B nobody asked for;
- brevity (C3): where many facts are asked for it tends to stop before the last ones.

Beside them one slip, too rare for greedy decoding but there in samples: an answer runs on after its last fact, with a
sentence that repeats one or that nobody asked for (C1). Feedback then says that such sentences are unwanted too; else
a policy that is paid by the sentence could learn to run on.

Knows an item and its own rates; knows nothing of how errors are judged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.worlds.factworld import lexicon
from finegrained_rlhf.worlds.factworld.world import Item


@dataclass(frozen=True)
class WriterConfig:
    """The writer's habits. Rates are probabilities; a rate above 0.5 is what greedy decoding reproduces.

    Attributes:
        memory_attributes: attributes whose popular value it tends to give.
        memory_rate: how often it does so, per stated fact of such an attribute.
        ramble_attributes: attributes after which it tends to ramble.
        ramble_rate: how often it does so, per stated fact of such an attribute.
        brevity_rate: how often it leaves out the last facts of a question, per question with facts to spare.
        kept_share: share of the asked facts that it states then (rounded down, at least 2).
        extra_rate: how often it runs on with one more sentence, per question; half of them repeat a fact.
    """

    memory_attributes: tuple[str, ...] = ("color", "fruit", "job", "sport")
    memory_rate: float = 0.65
    ramble_attributes: tuple[str, ...] = ("color", "fruit", "sport", "shape")
    ramble_rate: float = 0.65
    brevity_rate: float = 0.75
    kept_share: float = 0.67
    extra_rate: float = 0.15

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_attributes", tuple(self.memory_attributes))
        object.__setattr__(self, "ramble_attributes", tuple(self.ramble_attributes))
        for name in ("memory_attributes", "ramble_attributes"):
            unknown = sorted(set(getattr(self, name)) - set(lexicon.ATTRIBUTES))
            if unknown:
                raise ConfigError(f"writer.{name}: unknown attribute {unknown[0]!r}, expected {lexicon.ATTRIBUTES}")
        for name in ("memory_rate", "ramble_rate", "brevity_rate", "kept_share", "extra_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"writer.{name} must be between 0 and 1, got {getattr(self, name)}")


def write(item: Item, rng: random.Random, config: WriterConfig) -> str:
    """The writer's answer to `item`, in the answer grammar of the oracle."""
    asked = item.asked
    kept = max(2, int(len(asked) * config.kept_share))
    if rng.random() < config.brevity_rate:
        asked = asked[:kept]
    sentences = []
    rambled: set[str] = set()
    for attribute in asked:
        clauses = [_state(item, attribute, rng, config)]
        if attribute in config.ramble_attributes and rng.random() < config.ramble_rate:
            extra = _next_topic(attribute, {*item.asked, *rambled})
            if extra is not None:
                rambled.add(extra)
                clauses.append(_state(item, extra, rng, config))
        sentences.append(lexicon.sentence(clauses))
    if rng.random() < config.extra_rate:
        others = [name for name in lexicon.ATTRIBUTES if name not in {*item.asked, *rambled}]
        attribute = rng.choice(others) if others and rng.random() < 0.5 else rng.choice(asked)
        sentences.append(lexicon.sentence([_state(item, attribute, rng, config)]))
    return " ".join(sentences)


def _state(item: Item, attribute: str, rng: random.Random, config: WriterConfig) -> str:
    """The clause about `attribute`: from memory by habit or for want of a fact, else from the passage."""
    value = item.value(attribute)
    by_habit = attribute in config.memory_attributes and rng.random() < config.memory_rate
    if value is None or by_habit:
        value = lexicon.POPULAR[attribute]
    return lexicon.clause(attribute, item.entity, value)


def _next_topic(attribute: str, used: set[str]) -> str | None:
    """The first attribute after `attribute`, in the lexicon's circle, that is not in `used`."""
    names = lexicon.ATTRIBUTES
    start = names.index(attribute)
    circle = (names[(start + step) % len(names)] for step in range(1, len(names)))
    return next((name for name in circle if name not in used), None)
