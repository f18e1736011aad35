"""Documents and dialogues of DialogueWorld, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from finegrained_lab.worlds.dialogue import lexicon
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn

MIN_PASSAGES, MAX_PASSAGES = 6, 10


@dataclass(frozen=True)
class DialogueWorldConfig(Settings):
    """What every document and dialogue looks like.

    Attributes:
        passages: fewest and most passages of a document, one place each; 6 to 10.
        facts: facts a passage states, one span each; all passages of a document state the same attributes, each in an
            order of its own.
        questions: fewest and most user turns of a dialogue.
        kinds: how often a user turn after the first one asks in each way (any positive weights), among the ways that
            lead to a fact that was not told yet.
        skew: each attribute of the lexicon is asked for `skew` times as often as the one before it; 1 = all alike.
        echo: how often an agent turn names its place.
        noise: share of the labels (of user and agent turns alike, each by itself) that name another span of the
            document than the right one. An agent turn's label is a target in one example and history in later ones.
    """

    passages: tuple[int, int] = (MIN_PASSAGES, MAX_PASSAGES)
    facts: int = 5
    questions: tuple[int, int] = (4, 6)
    kinds: Mapping[str, float] = field(
        default_factory=lambda: {"named": 0.1, "pronoun": 0.2, "place": 0.2, "next": 0.25, "resume": 0.25}
    )
    skew: Annotated[float, above(0), at_most(1)] = 0.75
    echo: Annotated[float, at_least(0), at_most(1)] = 0.0
    noise: Annotated[float, at_least(0), at_most(1)] = 0.0

    def __post_init__(self) -> None:
        low, high = self.passages
        if not MIN_PASSAGES <= low <= high <= MAX_PASSAGES:
            raise ConfigError(f"world.passages must be within {MIN_PASSAGES} to {MAX_PASSAGES}, got {low} to {high}")
        if not 2 <= self.facts <= len(lexicon.ATTRIBUTES):
            raise ConfigError(f"world.facts must be 2 to {len(lexicon.ATTRIBUTES)}, got {self.facts}")
        most = (low - 1) * self.facts  # a named question then never runs out of facts
        if not 1 <= self.questions[0] <= self.questions[1] <= most:
            raise ConfigError(f"world.questions must be 1 to {most}, lowest first, got {list(self.questions)}")
        if set(self.kinds) != set(lexicon.KINDS) or min(self.kinds.values()) < 0 or self.kinds["named"] <= 0:
            raise ConfigError(
                f"world.kinds needs a weight of 0 or more for each of {', '.join(lexicon.KINDS)} and more than 0 for "
                f"named, got {dict(self.kinds)}"
            )


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

    def span_of(self, passage: int, attribute: str) -> int:
        """Which span of a passage states an attribute."""
        return [name for name, _ in self.facts[passage]].index(attribute)


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
    """A dialogue about one document: user and agent turns in turn.

    Attributes:
        id: unique within a world.
        document: what it is about.
        turns: oldest first, with their labels: what a user turn goes back to (an earlier agent turn's span, or
            nothing), and what an agent turn tells. With `noise` some are wrong.
        kinds: how each user turn asks, one of `lexicon.KINDS`.
    """

    id: str
    document: WorldDocument
    turns: tuple[Turn, ...]
    kinds: tuple[str, ...]


class _Walk:
    """Where a dialogue stands in its document: what was told, and where a question of each kind would lead."""

    def __init__(self, document: WorldDocument) -> None:
        self.document = document
        self.told: list[tuple[int, int]] = []
        """(passage, span) of every agent turn so far."""

    def leads(self, kind: str) -> list[tuple[tuple[int, int], tuple[int, int] | None]]:
        """Facts not told yet that a question of a kind can ask for, each with the told fact that it goes back to."""
        places, spans = range(len(self.document.names)), range(len(self.document.facts[0]))
        if kind == "named":
            present = self.told[-1][0] if self.told else None
            open_facts: list[tuple[tuple[int, int], tuple[int, int] | None]] = [
                ((p, s), None) for p in places for s in spans if p != present
            ]
        else:
            last = passage, span = self.told[-1]
            attribute = self.document.facts[passage][span][0]
            latest = dict(self.told)  # of each place, the span told last
            if kind == "pronoun":
                open_facts = [((passage, s), last) for s in spans if s != span]
            elif kind == "place":
                open_facts = [((p, self.document.span_of(p, attribute)), last) for p in places if p != passage]
            else:
                left = latest.items() if kind == "resume" else [last]
                open_facts = [
                    ((p, s + 1), (p, s)) for p, s in left if s + 1 in spans and (kind == "next" or p != passage)
                ]
        return [lead for lead in open_facts if lead[0] not in self.told]


def draw_dialogue(name: str, document: WorldDocument, rng: random.Random, config: DialogueWorldConfig) -> WorldDialogue:
    """A dialogue with right labels: it opens with a named question, and tells no fact twice.

    A user turn's label is the told fact that its question goes back to, so that no label is ever what a later turn
    rests on. A named question goes back to nothing and has none.
    """
    walk = _Walk(document)
    turns: list[Turn] = []
    kinds: list[str] = []
    for number in range(rng.randint(*config.questions)):
        leads = {kind: walk.leads(kind) for kind in (lexicon.KINDS if number else ("named",))}
        possible = [kind for kind, places in leads.items() if places and config.kinds[kind] > 0]
        kind = rng.choices(possible, [config.kinds[kind] for kind in possible])[0]
        weights = [config.skew ** lexicon.ATTRIBUTES.index(document.facts[p][s][0]) for (p, s), _ in leads[kind]]
        (passage, span), origin = rng.choices(leads[kind], weights)[0]
        attribute, value = document.facts[passage][span]
        place = document.names[passage]
        label = None if origin is None else Knowledge(origin[0], origin[1], origin[1])
        turns.append(Turn("user", lexicon.user_turn(kind, attribute, place), label))
        named = place if rng.random() < config.echo else None
        turns.append(Turn("agent", lexicon.agent_turn(value, named), Knowledge(passage, span, span)))
        walk.told.append((passage, span))
        kinds.append(kind)
    return WorldDialogue(name, document, tuple(turns), tuple(kinds))


def with_noise(dialogue: WorldDialogue, rng: random.Random, share: float) -> WorldDialogue:
    """The dialogue with `share` of its labels wrong: another span of the document, all alike. Words stay as they are.

    Args:
        dialogue: with right labels.
        rng: advanced alike whatever the labels are.
        share: of the labels, 0 to 1.
    """
    spans = [(p, s) for p, facts in enumerate(dialogue.document.facts) for s in range(len(facts))]

    def labelled(turn: Turn) -> Turn:
        wrong, (passage, span) = rng.random() < share, rng.choice(spans)
        if turn.knowledge is None or not wrong:
            return turn
        if (passage, span) == (turn.knowledge.passage, turn.knowledge.begin):
            passage, span = spans[spans.index((passage, span)) - 1]
        return replace(turn, knowledge=Knowledge(passage, span, span))

    return replace(dialogue, turns=tuple(labelled(turn) for turn in dialogue.turns))
