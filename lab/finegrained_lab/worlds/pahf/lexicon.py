"""The words of PahfWorld, and how preferences are said and read.

Draws nothing at random, and knows no user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ThingKind:
    """A kind of thing.

    Attributes:
        request: how it is asked for.
        attributes: values by attribute; no value belongs to two attributes of a kind.
        nouns: things of this kind.
    """

    request: str
    attributes: Mapping[str, tuple[str, ...]]
    nouns: tuple[str, ...]

    @property
    def values(self) -> frozenset[str]:
        """Of all attributes."""
        return frozenset(value for values in self.attributes.values() for value in values)


KINDS: Mapping[str, ThingKind] = {
    "drink": ThingKind(
        "Could you bring me a drink?",
        {
            "temperature": ("iced", "cool", "warm", "hot"),
            "taste": ("sweet", "bitter", "sour", "salty"),
            "size": ("tiny", "small", "large", "huge"),
        },
        ("tea", "juice", "broth", "soda", "cocoa", "punch"),
    ),
    "snack": ThingKind(
        "Could you bring me a snack?",
        {
            "texture": ("crunchy", "soft", "creamy", "chewy"),
            "flavour": ("spicy", "nutty", "fruity", "smoky"),
            "wrapping": ("boxed", "bagged", "tinned", "unwrapped"),
        },
        ("bar", "biscuit", "roll", "cracker", "cake", "wedge"),
    ),
    "place": ThingKind(
        "Could you choose a place for this parcel?",
        {
            "height": ("top", "upper", "lower", "bottom"),
            "access": ("open", "glazed", "closed", "locked"),
            "side": ("left", "right", "front", "rear"),
        },
        ("shelf", "cabinet", "drawer", "rack", "locker", "cupboard"),
    ),
}
SITUATIONS = ("tired", "anxious", "celebrating", "ill", "rushed")
"""In which a user may want something else than in general."""
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class Matter:
    """What a text is about.

    Attributes:
        kind: a key of `KINDS`; None where none is named.
        situation: one of `SITUATIONS`; empty for in general.
        value: that is wanted; None where none is named.
    """

    kind: str | None
    situation: str
    value: str | None


def matter_of(text: str) -> Matter:
    """What a text is about: the first kind and situation that it names, and the last value of that kind."""
    words = _WORD.findall(text.lower())
    kind = next((word for word in words if word in KINDS), None)
    situation = next((word for word in words if word in SITUATIONS), "")
    values = [word for word in words if kind is not None and word in KINDS[kind].values]
    return Matter(kind, situation, values[-1] if values else None)


def instruction_of(kind: str, situation: str) -> str:
    """What a user asks for."""
    return f"I am {situation}. {KINDS[kind].request}" if situation else KINDS[kind].request


def preference_of(kind: str, situation: str, value: str) -> str:
    """What a user says of a preference."""
    return f"{f'When I am {situation}' if situation else 'In general'}, I want a {value} {kind}."


def note_of(kind: str, situation: str, value: str) -> str:
    """What is noted of a preference."""
    return f"{f'When {situation}' if situation else 'In general'}, wants a {value} {kind}."


def has_value(option: str, value: str) -> bool:
    """Whether an option is of a value."""
    return value in _WORD.findall(option.lower())
