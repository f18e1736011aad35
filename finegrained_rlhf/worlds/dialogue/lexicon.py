"""The words of DialogueWorld: names of places, attributes and values, and the sentences they stand in.

Knows words. Knows nothing of documents, dialogues or models. A name is two words, so that names can be held out
whose words are known. No word belongs to two lists.
"""

from __future__ import annotations

from itertools import product

from finegrained_rlhf.worlds.words import word_lists

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
    "pronoun": "And its {attribute}?",
    "place": "And {name}?",
    "back": "And the other one?",
}
"""Ways of asking. `named` needs no history; `pronoun` takes the place from it; `place` takes the attribute; `back`
takes the attribute, and the place that was spoken of before the present one."""
