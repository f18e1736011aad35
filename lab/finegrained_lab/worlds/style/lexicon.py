"""The sources of StyleWorld: what their contexts are about, and how their reader wants texts.

Draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrained_lab.worlds.style.styles import PLAIN


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
