"""Making a StyleWorld's files: contexts of every source in a mixed order, and what their reader prefers.

The sources' lexicon, what their contexts are about and how their reader wants texts, stands here, too; it draws
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.worlds.style.styles import DIMENSIONS, ENDINGS, FULL, GREETING, PLAIN, description
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.factworld.base import World


@dataclass(frozen=True)
class StyleSource:
    """Where contexts come from.

    Attributes:
        people: who its sentences are about, each a first word.
        verbs: what they do.
        things: to what.
        style: that the reader wants its texts in.
    """

    people: tuple[str, ...]
    verbs: tuple[str, ...]
    things: tuple[str, ...]
    style: Mapping[str, str]


def _source(people: str, verbs: str, things: str, **wanted: str) -> StyleSource:
    return StyleSource(tuple(people.split()), tuple(verbs.split()), tuple(things.split()), {**PLAIN, **wanted})


SOURCES: Mapping[str, StyleSource] = {
    "news": _source(
        "Ministers Voters Mayors",
        "debate reject announce approve",
        "taxes elections budgets treaties strikes laws",
        layout="bullet points",
        length="short",
    ),
    "travel": _source(
        "Visitors Hikers Tourists",
        "explore photograph cross reach",
        "valleys harbors castles islands beaches bridges",
        person="second person",
        emojis="emojis",
    ),
    "cooking": _source(
        "Cooks Bakers Guests",
        "stir roast taste season",
        "onions lentils soups breads sauces peppers",
        person="second person",
        length="short",
        ending="closing question",
    ),
    "cinema": _source(
        "Critics Actors Viewers",
        "praise dislike rewatch discuss",
        "comedies scenes dialogues endings sequels costumes",
        opening="greeting first",
        ending="thanks at the end",
    ),
    "research": _source(
        "Chemists Engineers Students",
        "measure compare simulate publish",
        "enzymes sensors polymers datasets lasers alloys",
        layout="bullet points",
        opening="greeting first",
        ending="closing question",
    ),
}
WHEN = ("in the morning", "every year", "without delay", "for the first time", "once again", "in silence")
"""What ends a sentence of any source."""


PREFERENCES = "preferences.json"


@dataclass(frozen=True)
class StyleContext:
    """A context.

    Attributes:
        id: unique in the world.
        source: where it comes from, which no agent is told.
        text: its sentences.
        foreign: how many of them are another source's.
    """

    id: str
    source: str
    text: str
    foreign: int


@dataclass(frozen=True)
class MakeStyleWorld(World[StyleContext]):
    """Make a world and write its files to `output_dir`.

    `contexts.jsonl`: a context a round, equally many of each source, in an order drawn at random; `preferences.json`:
    the true preference by source; `world.jsonl`: the truth about every context; `corpus.txt`: every word of the world.

    Attributes:
        contexts: rounds; a multiple of the number of sources.
        sentences: of a context.
        foreign: share of a context's sentences that are another source's: the higher, the less its words say about its
            source, and the more often similar contexts have another preference.
    """

    salt: ClassVar[str] = "style world"
    splits: ClassVar[tuple[str, ...]] = ("contexts",)

    contexts: int = 200
    sentences: int = 6
    foreign: Annotated[float, at_least(0.0), at_most(1.0)] = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contexts % len(SOURCES):
            raise ConfigError(f"contexts: expected a multiple of {len(SOURCES)}, the sources, got {self.contexts}")
        if self.sentences < FULL:
            raise ConfigError(f"sentences: a detailed text takes {FULL}, got {self.sentences}")

    def draw(self) -> dict[str, list[StyleContext]]:
        """The contexts of each source, from random numbers of its own, and their order."""
        drawn = []
        for source in SOURCES:
            rng = self.rng("contexts", source)
            drawn += [self._context(source, number, rng) for number in range(self.contexts // len(SOURCES))]
        self.rng("order").shuffle(drawn)
        return {"contexts": drawn}

    def _context(self, source: str, number: int, rng: random.Random) -> StyleContext:
        others = [other for other in SOURCES if other != source]
        origins = [rng.choice(others) if rng.random() < self.foreign else source for _ in range(self.sentences)]
        sentences: list[str] = []
        for origin in origins:
            words, sentence = SOURCES[origin], ""
            while not sentence or sentence in sentences:
                parts = (rng.choice(part) for part in (words.people, words.verbs, words.things, WHEN))
                sentence = f"{' '.join(parts)}."
            sentences.append(sentence)
        foreign = sum(origin != source for origin in origins)
        return StyleContext(f"{source}-{number:03d}", source, " ".join(sentences), foreign)

    def write_shared(self, directory: Path) -> list[str]:
        """The true preference of each source, in words."""
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / PREFERENCES, {name: description(source.style) for name, source in SOURCES.items()})
        return [PREFERENCES]

    def write_split(self, path: Path, split: str, drawn: Sequence[StyleContext]) -> None:
        """One context a line: `id`, `source`, `text`."""
        write_jsonl(path, ({"id": one.id, "source": one.source, "text": one.text} for one in drawn))

    def truth(self, split: str, drawn: StyleContext) -> dict[str, Any]:
        """Source, preference and how much of the context is another source's."""
        preference = description(SOURCES[drawn.source].style)
        return {
            "id": drawn.id,
            "split": split,
            "source": drawn.source,
            "preference": preference,
            "foreign_sentences": drawn.foreign,
        }

    def vocabulary(self) -> list[str]:
        """Sentences with every word of the world, and the words for styles."""
        sentences = [
            f"{person} {verb} {thing} {when}."
            for source in SOURCES.values()
            for person in source.people
            for verb in source.verbs
            for thing in source.things
            for when in WHEN
        ]
        frame = [GREETING, *ENDINGS.values(), *(value for values in DIMENSIONS.values() for value in values)]
        return [*sentences, "You", *frame]
