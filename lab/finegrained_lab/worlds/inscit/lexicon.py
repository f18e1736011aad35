"""The words of InscitWorld: those of passages, and the other ones that users have for the same things.

No user's word for an attribute, a period or a kind occurs in a passage; each belongs to one word of the passages, so
that the pairs can be learnt. Things belong to one attribute each, so that a value says what it is a value of.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from finegrained_rlhf.factworld.lexicon import word_lists

FIRST_NAMES: tuple[str, ...] = tuple(
    "Arden Borin Calder Dorva Elmet Farro Golan Hirta Istra Jarlo Kelda Lomas Mirov Norba Orsay Pelta Quern Rovan "
    "Selby Talim Vesna Wulin Yorra Zemla Abrel Brisa Corvo Dalma Ester Fenno Gavot Hedra Ilmar Jesko Koril Lauri "
    "Mezza Nuvol Oltra Perro".split()
)
LAST_NAMES: tuple[str, ...] = tuple(
    "Ulver Varna Wexla Xanti Yarow Zelta Breno Cosma Drava Egmont Fanar Gorki Hollo Ibar Josep Kirin Lubek Madro "
    "Nesta Opava Ravik Sorne Tavor Udine Vosso Wendt Xerra Yanno Zorba Altan Bekka Cirro Dunja Elvas Furlo Gimba "
    "Haslo Irgun Jumna Kosel".split()
)
FEWEST_NAME_WORDS = 20
"""So many first and last words, the first of each list, name the entities of a world that needs no more."""
ENTITY_KINDS: Mapping[str, str] = {"town": "settlement", "ship": "vessel", "club": "team", "castle": "fortress"}
"""Of each kind of entity in the words of passages, the user's word."""
PERIODS: Mapping[str, str] = {"early": "first", "middle": "central", "late": "final", "modern": "recent"}
"""Of each period, in order of time, the user's word."""
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "History": ("founder", "owner"),
    "Trade": ("product", "partner"),
    "Culture": ("festival", "emblem"),
    "People": ("leader", "guest"),
    "Nature": ("animal", "tree"),
    "Building": ("material", "color"),
}
"""Of each section, the attributes that its passages speak of."""
SECTION_OF: Mapping[str, str] = {name: section for section, names in SECTIONS.items() for name in names}
USER_WORDS = word_lists(
    {
        "founder": "creator originator",
        "owner": "holder proprietor",
        "product": "goods merchandise",
        "partner": "ally counterpart",
        "festival": "celebration feast",
        "emblem": "badge symbol",
        "leader": "chief boss",
        "guest": "visitor caller",
        "animal": "creature beast",
        "tree": "plant wood",
        "material": "substance stuff",
        "color": "hue tint",
    }
)
"""Of each attribute, the user's words."""
LINKED, TOPICS = "partner", "topics"
"""The attribute whose values are entities, and the one whose values are the sections of an article."""
_QUALITIES = "plain old new small great".split()
_THINGS = word_lists(
    {
        "founder": "baker farmer doctor teacher pilot sailor",
        "owner": "tailor lawyer miller butcher painter singer",
        "product": "hammer saw drill axe shovel chisel",
        "festival": "dance race parade concert banquet regatta",
        "emblem": "circle square triangle star cross cube",
        "leader": "king queen duke count prince bishop",
        "guest": "poet actor judge monk nurse clown",
        "animal": "dog cat horse cow sheep goat",
        "tree": "oak birch maple willow cedar elm",
        "material": "iron copper silver clay brick slate",
        "color": "red blue green black white yellow",
    }
)
VALUES: Mapping[str, tuple[str, ...]] = {
    attribute: tuple(f"{quality} {thing}" for quality, thing in product(_QUALITIES, things))
    for attribute, things in _THINGS.items()
}
"""Of each attribute but `LINKED`, all values."""

WHEN = " in the {period} years"
QUESTION_FORMS: Mapping[str, tuple[str, ...]] = {
    "named": (
        "What was the {attribute} of {name}{when}?",
        "Tell me the {attribute} of {name}{when}.",
        "I would like to know the {attribute} of {name}{when}.",
    ),
    "pronoun": ("What was its {attribute}{when}?", "Tell me its {attribute}{when}."),
    "ellipsis": ("And the {attribute}{when}?", "How about the {attribute}{when}?"),
    "period": ("And in the {period} years?", "How about the {period} years?"),
    "shift": ("And for {name}?", "How about {name}?"),
    "linked": ("What was the {attribute} of that {kind}{when}?", "Tell me the {attribute} of that {kind}{when}."),
    "topics": ("What can you tell me about {name}?", "I would like to know something about {name}."),
    "pick_kind": ("I mean the {kind}.", "The {kind}, please."),
    "pick_period": ("I mean the {period} years.", "The {period} years, please."),
}
"""Ways of asking. `pronoun`, `ellipsis` and `period` take the entity from what was said, `period` and `shift` the
attribute; `linked` asks about the entity that the agent has just named; the picks answer a question of the agent."""
UNKNOWN_FILLER = "Nothing is known about its {attribute}."
"""What a passage says of an attribute that it does not tell."""


def question_text(template: str, attribute: str, name: str, kind: str, period: str) -> str:
    """A question.

    Args:
        template: of `QUESTION_FORMS`.
        attribute: the word for it.
        name: of the entity, perhaps with the word for its kind.
        kind: the word for it.
        period: the word for it; empty where the question has none.
    """
    when = WHEN.format(period=period) if period else ""
    return template.format(attribute=attribute, name=name, kind=kind, period=period, when=when)
