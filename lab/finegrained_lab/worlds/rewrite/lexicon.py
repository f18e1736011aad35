"""The words of RewriteWorld: names, attributes and values, and the sentences they stand in.

A value is a quality and a thing; things belong to one attribute each, so that a value says what it is a value of, and
only qualities are shared.
"""

from __future__ import annotations

from itertools import product

from finegrained_rlhf.factworld.lexicon import word_lists

NAMES: tuple[str, ...] = tuple(
    "Arden Borin Calder Dorva Elmet Farro Golan Hirta Istra Jarlo Kelda Lomas Mirov Norba Orsay Pelta Quern Rovan "
    "Selby Talim Ulver Varna Wexla Xanti Yarow Zelta Breno Cosma Drava Egmont Fanar Gorki Hollo Ibar Josep Kirin "
    "Lubek Madro Nesta Opava".split()
)
QUALITIES: tuple[str, ...] = tuple("plain old new small great".split())
THINGS = word_lists(
    {
        "color": "red blue green black white yellow purple brown",
        "metal": "iron copper silver gold zinc nickel lead tin",
        "tree": "oak birch maple willow cedar elm pine ash",
        "animal": "dog cat horse cow sheep goat pig duck",
        "guard": "baker farmer doctor teacher pilot sailor tailor lawyer",
        "sport": "tennis golf rugby soccer hockey boxing rowing judo",
        "shape": "circle square triangle star cross oval cube cone",
        "tool": "hammer saw drill axe shovel rake wrench chisel",
    }
)
ATTRIBUTES: tuple[str, ...] = tuple(THINGS)
VALUES: dict[str, tuple[str, ...]] = {
    attribute: tuple(f"{quality} {thing}" for quality, thing in product(QUALITIES, things))
    for attribute, things in THINGS.items()
}

KINDS: dict[str, str] = {
    "named": "What is the {attribute} of {name}?",
    "pronoun": "What is its {attribute}?",
    "ellipsis": "And the {attribute}?",
    "shift": "And {name}?",
}
"""Ways of asking. `named` needs no history; `pronoun` and `ellipsis` take the name from it; `shift` takes the
attribute."""
SHIFTS = ("named", "shift")
"""The ways of asking that leave the topic of the turn before."""


def user_question(kind: str, attribute: str, name: str) -> str:
    """What a user says, in one of the `KINDS` of asking."""
    return KINDS[kind].format(attribute=attribute, name=name)


def rewrite(attribute: str, name: str) -> str:
    """The question that stands alone, as a person writes it: `What is the color of Arden?`."""
    return user_question("named", attribute, name)


def agent_answer(value: str) -> str:
    """What the agent says: `plain red.`."""
    return f"{value}."


def passage(attribute: str, name: str, value: str) -> str:
    """The passage that states a fact: `The color of Arden is plain red.`."""
    return f"The {attribute} of {name} is {value}."
