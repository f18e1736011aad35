"""Making a BiosWorld's file: people of one name, and conversations of each scenario with a scripted user."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.protocols.coreset.conversations import AmbiguousConversation
from finegrained_lab.protocols.coreset.scenarios import MOST_PARTIAL, TURNS, draw_conversation_turns, wrong_places
from finegrained_lab.worlds.bios.lexicon import (
    FACTS,
    FIRST_NAMES,
    LAST_NAMES,
    biography,
    user_says,
)
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.factworld.base import World
from finegrained_rlhf.personalization.selection import SourceDocument

CONVERSATIONS = "conversations"
_TRIES = 200  # to draw people who allow a scenario
_MOST = min(len(fact.values) for fact in FACTS.values())


@dataclass(frozen=True)
class MakeBiosWorld(World[AmbiguousConversation]):
    """Make a world and write its files to `output_dir`.

    `conversations.jsonl`: conversations in the form that `finegrained run-coreset` reads; `world.jsonl`: who is meant
    in every turn, and the true answers; `corpus.txt`: every word of the world.

    Attributes:
        conversations: of each scenario with each number of documents.
        documents: N, how many people share a name; several numbers.
        overlap: share of a person's facts that are another's of the same name.
        scenarios: some of `protocols.coreset.scenarios.TURNS`.
        turns: of every conversation; None as in `TURNS`.
        wrong: remarks of `strays` that state a fact of somebody who is not meant; None: as for
            `draw_conversation_turns`.
    """

    salt: ClassVar[str] = "bios world"
    splits: ClassVar[tuple[str, ...]] = ()

    conversations: Annotated[int, at_least(1)] = 10
    documents: Sequence[int] = (3, 10, 20)
    overlap: Annotated[float, at_least(0.0), at_most(1.0)] = 0.3
    scenarios: Sequence[str] = tuple(TURNS)
    turns: Annotated[int | None, at_least(1)] = None
    wrong: Annotated[int | None, at_least(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.documents or not all(2 <= count <= _MOST for count in self.documents):
            raise ConfigError(f"documents: expected numbers from 2 to {_MOST}, got {list(self.documents)}")
        if not self.scenarios or set(self.scenarios) - set(TURNS):
            raise ConfigError(f"scenarios: expected some of {', '.join(TURNS)}, got {list(self.scenarios)}")
        most = len(wrong_places(self.turns or TURNS["strays"]))
        if "strays" in self.scenarios and (self.wrong or 0) > most:
            raise ConfigError(f"wrong: expected at most {most} in so many turns, got {self.wrong}")

    def draw(self) -> dict[str, list[AmbiguousConversation]]:
        """The conversations, each from random numbers of its own.

        Raises:
            ConfigError: no people could be drawn who allow a scenario: too much overlap.
        """
        drawn = [
            self._conversation(scenario, count, number)
            for scenario in self.scenarios
            for count in self.documents
            for number in range(self.conversations)
        ]
        return {CONVERSATIONS: drawn}

    def _conversation(self, scenario: str, count: int, number: int) -> AmbiguousConversation:
        name = f"{scenario}-{count:02d}-{number:03d}"
        rng = self.rng("conversation", name)
        person = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        questions = {attribute: fact.question.format(name=person) for attribute, fact in FACTS.items()}
        people = _people_by_scenario(scenario, self.overlap)

        def say(attribute: str, value: str) -> str:
            return user_says(person, attribute, value)

        for _ in range(_TRIES):
            facts = people(count, rng)
            documents = tuple(
                SourceDocument(f"d{i}", biography(person, own), own) for i, own in enumerate(facts, start=1)
            )
            turns = draw_conversation_turns(scenario, documents, questions, say, rng, self.turns, self.wrong)
            if turns is not None:
                return AmbiguousConversation(name, scenario, documents, turns)
        raise ConfigError(
            f"overlap: no {count} people could be drawn for the scenario {scenario}; expected less overlap"
        )

    def write_split(self, path: Path, split: str, drawn: Sequence[AmbiguousConversation]) -> None:
        """One conversation a line."""
        write_jsonl(path, (one.row() for one in drawn))

    def truth(self, split: str, drawn: AmbiguousConversation) -> dict[str, Any]:
        """Who can be meant in every turn, and the answers that are then true."""
        turns = [
            {"relevant": [one.id for one in drawn.relevant(turn)], "answers": list(drawn.true_answers(turn))}
            for turn in drawn.turns
        ]
        return {"id": drawn.id, "scenario": drawn.scenario, "documents": len(drawn.documents), "turns": turns}

    def vocabulary(self) -> list[str]:
        """Sentences with every word of the world."""
        first, last = " ".join(FIRST_NAMES), " ".join(LAST_NAMES)
        texts = [fact.question.format(name=first) for fact in FACTS.values()]
        for attribute, fact in FACTS.items():
            texts += [user_says(last, attribute, value) for value in fact.values]
        return [*texts, biography(first, {attribute: fact.values[0] for attribute, fact in FACTS.items()})]


People = Callable[[int, random.Random], list[dict[str, str]]]


def _people_by_scenario(scenario: str, overlap: float) -> People:
    if scenario == "partial":
        return _nested_people
    share = 0.0 if scenario == "position" else overlap  # a single answer says where it is from
    return lambda count, rng: draw_people(count, share, rng)


def draw_people(count: int, overlap: float, rng: random.Random) -> list[dict[str, str]]:
    """People whose facts are all different, but for a share that is another's; no two are alike in all facts."""
    own = {attribute: rng.sample(fact.values, count) for attribute, fact in FACTS.items()}
    for values in own.values():
        for i in range(count):
            if rng.random() < overlap:
                values[i] = values[rng.randrange(count)]
    people = [{attribute: values[i] for attribute, values in own.items()} for i in range(count)]
    return people if len({tuple(one.values()) for one in people}) == count else draw_people(count, overlap / 2, rng)


def _nested_people(count: int, rng: random.Random) -> list[dict[str, str]]:
    """People of whom each of up to three facts rules out one: the j-th fact is shared by all but the first j."""
    people = draw_people(count, 0.0, rng)
    for j, attribute in enumerate(rng.sample(list(FACTS), min(MOST_PARTIAL, count - 1)), start=1):
        for one in people[j:]:
            one[attribute] = people[-1][attribute]
    rng.shuffle(people)
    return people
