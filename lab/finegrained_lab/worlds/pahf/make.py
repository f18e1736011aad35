"""Making a PahfWorld's files: users with rules, which partly change, and scenes for the four phases."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.worlds.pahf.lexicon import (
    KINDS,
    SITUATIONS,
    has_value,
    instruction_of,
    note_of,
    preference_of,
)
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.factworld.base import World

OPTIONS = 4
"""Of a scene."""
PHASES = ("phase1", "phase2", "phase3", "phase4")
"""Learn, test, learn again with changed preferences, test: 3 has the scenes of 1, and 4 those of 2."""
MATTERS = tuple((kind, situation) for kind in KINDS for situation in ("", *SITUATIONS))
"""What a user has a rule for: a kind of thing, in general and in each situation."""
Rules = Mapping[tuple[str, str], str]
"""The wanted value by matter."""


@dataclass(frozen=True)
class PersonaScene:
    """A scene with what is true of it.

    Attributes:
        id: unique in its phase.
        user: whose it is.
        kind: of the thing that is asked for.
        situation: that the user is in; empty for none.
        options: of which one alone has the wanted value, before and after the change.
        value: that is wanted in this phase.
        changed: whether the user wanted another one in the phases before the change.
    """

    id: str
    user: str
    kind: str
    situation: str
    options: tuple[str, ...]
    value: str
    changed: bool

    @property
    def intent(self) -> str:
        """The option of the wanted value."""
        return next(option for option in self.options if has_value(option, self.value))


@dataclass(frozen=True)
class MakePahfWorld(World[PersonaScene]):
    """Make a world and write its files to `output_dir`.

    `phase1.jsonl` to `phase4.jsonl`: the scenes in the form that `finegrained run-pahf` reads, users in mixed order;
    `world.jsonl`: the rule behind every scene; `corpus.txt`: every word of the world.

    A user wants, for each kind of thing, one value in general and another one in each situation, drawn at random, so
    that nothing can be guessed. In a scene one option alone has the wanted value.

    Attributes:
        users: how many.
        scenes: of each user in each phase; a number of rules is gone through in turn.
        drift: share of a user's rules that have changed in phases 3 and 4.
    """

    salt: ClassVar[str] = "pahf world"
    splits: ClassVar[tuple[str, ...]] = ()

    users: Annotated[int, at_least(1)] = 10
    scenes: Annotated[int, at_least(1)] = 36
    drift: Annotated[float, at_least(0.0), at_most(1.0)] = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()

    def draw(self) -> dict[str, list[PersonaScene]]:
        """The scenes of each phase; each user from random numbers of their own."""
        drawn: dict[str, list[PersonaScene]] = {phase: [] for phase in PHASES}
        for number in range(self.users):
            user = f"user-{number:02d}"
            rng = self.rng("user", user)
            before = _rules(rng)
            after = _changed(before, self.drift, rng)
            for first, second in (("phase1", "phase3"), ("phase2", "phase4")):
                for scene in range(self.scenes):
                    matter = MATTERS[scene % len(MATTERS)]
                    values = (before[matter], after[matter])
                    options = _options(matter[0], values, rng)
                    for phase, value in zip((first, second), values, strict=True):
                        changed = phase == second and values[0] != values[1]
                        name = f"{user}-{first}-{scene:03d}"  # the same in the phase after the change
                        drawn[phase].append(PersonaScene(name, user, *matter, options, value, changed))
        for phase, scenes in drawn.items():
            self.rng("order", phase).shuffle(scenes)
        return drawn

    def write_split(self, path: Path, split: str, drawn: Sequence[PersonaScene]) -> None:
        """One scene a line: `id`, `user`, `instruction`, `options`, `intent`, `preference`."""
        rows = (
            {
                "id": scene.id,
                "user": scene.user,
                "instruction": instruction_of(scene.kind, scene.situation),
                "options": list(scene.options),
                "intent": scene.intent,
                "preference": preference_of(scene.kind, scene.situation, scene.value),
            }
            for scene in drawn
        )
        write_jsonl(path, rows)

    def truth(self, split: str, drawn: PersonaScene) -> dict[str, Any]:
        """The rule behind the scene."""
        rule = {"kind": drawn.kind, "situation": drawn.situation, "value": drawn.value, "changed": drawn.changed}
        return {"id": drawn.id, "split": split, "user": drawn.user, **rule}

    def vocabulary(self) -> list[str]:
        """Sentences with every word of the world."""
        texts = []
        for kind, situation in MATTERS:
            texts.append(instruction_of(kind, situation))
            for value in sorted(KINDS[kind].values):
                texts += [preference_of(kind, situation, value), note_of(kind, situation, value)]
        return [*texts, *(" ".join(kind.nouns) for kind in KINDS.values())]


def _rules(rng: random.Random) -> dict[tuple[str, str], str]:
    """A value for each matter; in a situation another one than in general."""
    rules: dict[tuple[str, str], str] = {}
    for kind, situation in MATTERS:
        general = rules.get((kind, ""))
        rules[kind, situation] = _value(kind, rng, but=general)
    return rules


def _changed(rules: Rules, drift: float, rng: random.Random) -> dict[tuple[str, str], str]:
    """The rules after the change."""
    return {
        (kind, situation): _value(kind, rng, but=value) if rng.random() < drift else value
        for (kind, situation), value in rules.items()
    }


def _value(kind: str, rng: random.Random, but: str | None) -> str:
    attribute = rng.choice(list(KINDS[kind].attributes.values()))
    return rng.choice([value for value in attribute if value != but])


def _options(kind: str, values: tuple[str, str], rng: random.Random) -> tuple[str, ...]:
    """Things of which one alone has each of the values."""
    while True:
        things = [
            " ".join([*(rng.choice(values) for values in KINDS[kind].attributes.values()), noun])
            for noun in rng.sample(KINDS[kind].nouns, OPTIONS)
        ]
        if all(sum(has_value(thing, value) for thing in things) == 1 for value in values):
            return tuple(things)
