"""Who writes answers: the gold writer, and the imperfect one, whose answers the first policy learns from.

The gold writer makes no error. As configured, people's variety is in what it writes: other forms, another order, two
facts in a sentence, and it does not always think of what is auxiliary.

The imperfect writer's errors are habits, not slips: a slip vanishes when a policy trained on it decodes greedily, a
habit that wins more often than not survives. Three habits, one for each category of error:

- memory (C2): for some attributes it tends to give the popular value, whatever the passage says;
- rambling (C1): after some attributes it tends to go on with `, and the B of X is V` about a B nobody asked for;
- brevity (C3): where many facts are asked for it tends to stop before the last ones; of what is auxiliary to them it
  thinks at a rate of its own.

Beside them one slip, too rare for greedy decoding but there in samples: an answer runs on after its last fact, with a
sentence that repeats one or that nobody asked for (C1). Feedback then says that such sentences are unwanted too; else
a policy that is paid by the sentence could learn to run on.

Knows an item and the rates; knows nothing of how errors are judged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.factworld import lexicon
from finegrained_rlhf.factworld.world import Item


@dataclass(frozen=True)
class GoldConfig(Settings):
    """How gold answers are written. By default they are all of one form: the asked facts, one sentence each.

    Attributes:
        shuffled: facts come in any order, not in the question's.
        joined_rate: how often a fact goes on in the sentence of the one before, which then ends.
        auxiliary_rate: how often an auxiliary fact of an open question is stated, right after what it is auxiliary to.
    """

    shuffled: bool = False
    joined_rate: float = 0.0
    auxiliary_rate: float = 1.0

    def __post_init__(self) -> None:
        _require_rates("gold", self, ("joined_rate", "auxiliary_rate"))


@dataclass(frozen=True)
class WriterConfig(Settings):
    """The writer's habits. Rates are probabilities; a rate above 0.5 is what greedy decoding reproduces.

    Attributes:
        memory_attributes: attributes whose popular value it tends to give.
        memory_rate: how often it does so, per stated fact of such an attribute.
        ramble_attributes: attributes after which it tends to ramble.
        ramble_rate: how often it does so, per stated fact of such an attribute.
        brevity_rate: how often it leaves out the last facts of a question, per question with facts to spare.
        kept_share: share of the asked facts that it states then (rounded down, at least 2).
        extra_rate: how often it runs on with one more sentence, per question; half of them repeat a fact.
        auxiliary_rate: how often it states an auxiliary fact of an open question, in the sentence of what it is
            auxiliary to.
    """

    memory_attributes: tuple[str, ...] = ("color", "fruit", "job", "sport")
    memory_rate: float = 0.65
    ramble_attributes: tuple[str, ...] = ("color", "fruit", "sport", "shape")
    ramble_rate: float = 0.65
    brevity_rate: float = 0.75
    kept_share: float = 0.67
    extra_rate: float = 0.15
    auxiliary_rate: float = 0.25

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_attributes", tuple(self.memory_attributes))
        object.__setattr__(self, "ramble_attributes", tuple(self.ramble_attributes))
        for name in ("memory_attributes", "ramble_attributes"):
            unknown = sorted(set(getattr(self, name)) - set(lexicon.ATTRIBUTES))
            if unknown:
                raise ConfigError(f"writer.{name}: unknown attribute {unknown[0]!r}, expected {lexicon.ATTRIBUTES}")
        rates = ("memory_rate", "ramble_rate", "brevity_rate", "kept_share", "extra_rate", "auxiliary_rate")
        _require_rates("writer", self, rates)


def _require_rates(who: str, config: object, names: tuple[str, ...]) -> None:
    for name in names:
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"{who}.{name} must be between 0 and 1, got {getattr(config, name)}")


def write_gold(item: Item, rng: random.Random, config: GoldConfig, forms: int = 1) -> str:
    """A gold answer to `item`: asked facts and perhaps auxiliary ones as the passage states them, nothing else.

    Args:
        item: the question with its facts.
        rng: the source of all randomness; not asked where nothing is left to chance.
        config: how the answer is written.
        forms: in how many ways it states a fact.
    """
    named = list(item.asked)
    if config.shuffled:
        rng.shuffle(named)
    clauses = []
    for attribute in named:
        beside = _auxiliary(item, attribute, rng, config.auxiliary_rate)
        for stated in (attribute, beside):
            value = item.value(stated) if stated else None
            if stated and value is not None:
                clauses.append(_clause(item, stated, value, rng, forms))
    sentences: list[list[str]] = []
    for clause in clauses:
        if sentences and len(sentences[-1]) == 1 and _happens(rng, config.joined_rate):
            sentences[-1].append(clause)
        else:
            sentences.append([clause])
    return " ".join(map(lexicon.sentence, sentences))


def write(item: Item, rng: random.Random, config: WriterConfig, forms: int = 1) -> str:
    """The imperfect writer's answer to `item`, in the answer grammar of the oracle.

    Args:
        item: the question with its facts.
        rng: the source of all randomness.
        config: its habits.
        forms: in how many ways it states a fact.
    """
    asked = item.asked
    kept = max(2, int(len(asked) * config.kept_share))
    if rng.random() < config.brevity_rate:
        asked = asked[:kept]
    sentences = []
    wanted = {*item.asked, *item.auxiliary}
    rambled: set[str] = set()
    for attribute in asked:
        clauses = [_state(item, attribute, rng, config, forms)]
        if beside := _auxiliary(item, attribute, rng, config.auxiliary_rate):
            clauses.append(_state(item, beside, rng, config, forms))
        if attribute in config.ramble_attributes and rng.random() < config.ramble_rate:
            extra = _next_topic(attribute, wanted | rambled)
            if extra is not None:
                rambled.add(extra)
                clauses.append(_state(item, extra, rng, config, forms))
        sentences.append(lexicon.sentence(clauses))
    if rng.random() < config.extra_rate:
        others = [name for name in lexicon.ATTRIBUTES if name not in wanted | rambled]
        attribute = rng.choice(others) if others and rng.random() < 0.5 else rng.choice(asked)
        sentences.append(lexicon.sentence([_state(item, attribute, rng, config, forms)]))
    return " ".join(sentences)


def _happens(rng: random.Random, rate: float) -> bool:
    """Whether something of this rate happens; `rng` is not asked where that is certain."""
    return rate == 1 or (rate > 0 and rng.random() < rate)


def _auxiliary(item: Item, attribute: str, rng: random.Random, rate: float) -> str | None:
    """What is auxiliary to `attribute`, where the question asks for it and the writer thinks of it."""
    beside = lexicon.AUXILIARY.get(attribute)
    return beside if beside in item.auxiliary and _happens(rng, rate) else None


def _clause(item: Item, attribute: str, value: str, rng: random.Random, forms: int) -> str:
    return lexicon.clause(attribute, item.entity, value, rng.randrange(forms) if forms > 1 else 0)


def _state(item: Item, attribute: str, rng: random.Random, config: WriterConfig, forms: int) -> str:
    """The clause about `attribute`: from memory by habit or for want of a fact, else from the passage."""
    value = item.value(attribute)
    by_habit = attribute in config.memory_attributes and rng.random() < config.memory_rate
    if value is None or by_habit:
        value = lexicon.POPULAR[attribute]
    return _clause(item, attribute, value, rng, forms)


def _next_topic(attribute: str, used: set[str]) -> str | None:
    """The first attribute after `attribute`, in the lexicon's circle, that is not in `used`."""
    names = lexicon.ATTRIBUTES
    start = names.index(attribute)
    circle = (names[(start + step) % len(names)] for step in range(1, len(names)))
    return next((name for name in circle if name not in used), None)
