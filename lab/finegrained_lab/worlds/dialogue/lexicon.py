"""The words of DialogueWorld: names of places, attributes and values, and the sentences they stand in.

A name is two words, so that names can be held out whose words are known. No word belongs to two lists.
"""

from __future__ import annotations

from itertools import product

from finegrained_rlhf.factworld.lexicon import word_lists

FIRST: tuple[str, ...] = tuple("Amber Stone North Silver Old Royal Hidden Upper Quiet Lower".split())
LAST: tuple[str, ...] = tuple("Mill Inn Tower Garden Bridge Chapel Harbour Manor School Barn".split())
NAMES: tuple[str, ...] = tuple(f"{first} {last}" for first, last in product(FIRST, LAST))

VALUES = word_lists(
    {
        "color": "red blue green black white yellow purple brown",
        "metal": "iron copper tin gold zinc nickel lead bronze",
        "tree": "oak birch maple willow cedar elm pine ash",
        "animal": "dog cat horse cow sheep goat pig duck",
        "owner": "baker farmer doctor teacher pilot sailor tailor lawyer",
        "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday weekends",
        "sport": "tennis golf rugby soccer hockey boxing rowing judo",
        "shape": "circle square triangle star cross oval cube cone",
    }
)
ATTRIBUTES: tuple[str, ...] = tuple(VALUES)


def fact(attribute: str, value: str) -> str:
    """The span that states a fact in a passage, whose title says of what: `color: red`."""
    return f"{attribute}: {value}"


def agent_turn(value: str, name: str | None = None) -> str:
    """An agent turn: `red.`, with a name `Amber Mill: red.`."""
    return f"{value}." if name is None else f"{name}: {value}."


def user_turn(kind: str, attribute: str, name: str) -> str:
    """A user turn that asks for an attribute of a place, in one of the `KINDS` of asking."""
    return KINDS[kind].format(attribute=attribute, name=name)


KINDS: dict[str, str] = {
    "named": "The {attribute} of {name}?",
    "pronoun": "And what is its {attribute}?",
    "place": "And that of {name}?",
    "next": "And what comes after that?",
    "resume": "And next at {name}?",
}
"""Ways of asking, each of six words and marks. `named` needs no earlier turn; `pronoun` takes the place from them;
`place` takes the attribute; `next` takes the place, and asks for the fact that stands after the one told last;
`resume` goes back to a place that was left, and asks for the fact after the one told last there."""
