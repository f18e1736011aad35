"""The words of BiosWorld: five facts of a person, how a biography and a user state them, and how they are read.

Draws nothing at random, and knows no conversation. Sentences follow the examples of Sun et al., appendix D.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class BioFact:
    """A fact that every person has.

    Attributes:
        question: that asks for it, with `{name}`.
        statement: that states it, with `{name}` and `{value}`; of a user, of notes and of reasoning.
        values: that it may have.
    """

    question: str
    statement: str
    values: tuple[str, ...]


_CITIES = tuple(
    (
        "San Diego, California|San Antonio, Texas|Phoenix, Arizona|Denver, Colorado|Charlotte, North Carolina|"
        "Seattle, Washington|Nashville, Tennessee|Austin, Texas|Boston, Massachusetts|Dallas, Texas|"
        "Houston, Texas|Philadelphia, Pennsylvania|Los Angeles, California|Portland, Oregon|Columbus, Ohio|"
        "Atlanta, Georgia|Chicago, Illinois|Omaha, Nebraska|Tampa, Florida|Baltimore, Maryland|"
        "Albuquerque, New Mexico|Milwaukee, Wisconsin|Las Vegas, Nevada|Detroit, Michigan|Memphis, Tennessee|"
        "Newark, New Jersey|Boise, Idaho|Richmond, Virginia"
    ).split("|")
)
_MONTHS = "January February March April May June July August September October November December".split()
FACTS: Mapping[str, BioFact] = {
    "birthday": BioFact(
        "When was {name} born?",
        "{name} was born on {value}.",
        tuple(f"{_MONTHS[(5 * i) % 12]} {1 + (7 * i) % 28}, {year}" for i, year in enumerate(range(1955, 2003))),
    ),
    "hometown": BioFact("Where is {name} from?", "{name} is from {value}.", _CITIES),
    "university": BioFact(
        "Which university did {name} attend?",
        "{name} went to {value}.",
        tuple(
            f"the University of {place}"
            for place in (
                "Texas Virginia Oregon Utah Iowa Kansas Maine Vermont Alabama Georgia Florida Arizona Nevada Idaho "
                "Montana Wyoming Nebraska Minnesota Wisconsin Illinois Indiana Ohio Kentucky Tennessee Arkansas "
                "Delaware Maryland Connecticut"
            ).split()
        ),
    ),
    "major": BioFact(
        "What subject did {name} study?",
        "{name} majored in {value}.",
        tuple(
            (
                "Anthropology|Journalism|Nursing|Engineering|Art History|Philosophy|Biology|Chemistry|Physics|"
                "Economics|Linguistics|Geology|Astronomy|Sociology|Psychology|Mathematics|Statistics|Law|Medicine|"
                "Architecture|Music|Theology|Geography|Political Science|Classics|Botany|Zoology|Accounting"
            ).split("|")
        ),
    ),
    "city": BioFact("Where does {name} live?", "{name} currently lives in {value}.", _CITIES),
}
FIRST_NAMES = "Layla Ryan Mia Maya Owen Nora Felix Iris Hugo Clara Simon Ada".split()
LAST_NAMES = "Gonzalez Rivera Ramirez Jones Carter Nguyen Novak Haddad Larsen Okafor Moreau Tanaka".split()
_USE = " Use this information for your answers."
_BIOGRAPHY = {
    "birthday": r"was born on (?P<value>.+?)\.",
    "hometown": r"They were born and raised in (?P<value>.+?)\.",
    "university": r"They went to (?P<value>.+?) for higher education",
    "major": r"for higher education and majored in (?P<value>.+?)\.",
    "city": r"They currently live in (?P<value>.+?)\.",
}
_STATED = {
    "birthday": r"was born on (?P<value>.+?)\.",
    "hometown": r" is from (?P<value>.+?)\.",
    "university": r" went to (?P<value>.+?)\.",
    "major": r" majored in (?P<value>.+?)\.",
    "city": r" currently lives in (?P<value>.+?)\.",
}
_STATEMENT = re.compile(
    "|".join(f"(?P<{name}>{re.sub('P<value>', f'P<{name}_value>', of)})" for name, of in _STATED.items())
)


@dataclass(frozen=True)
class StatedFact:
    """A fact that a text states.

    Attributes:
        attribute: a key of `FACTS`.
        value: of it.
        end: where its sentence ends in the text, in characters.
    """

    attribute: str
    value: str
    end: int


def biography(name: str, facts: Mapping[str, str]) -> str:
    """The document about a person."""
    return (
        f"{name} was born on {facts['birthday']}. They were born and raised in {facts['hometown']}. They went to "
        f"{facts['university']} for higher education and majored in {facts['major']}. They currently live in "
        f"{facts['city']}."
    )


def statement(name: str, attribute: str, value: str) -> str:
    """A sentence that states a fact."""
    return FACTS[attribute].statement.format(name=name, value=value)


def user_says(name: str, attribute: str, value: str) -> str:
    """What a user says of who they mean."""
    return statement(name, attribute, value) + _USE


@lru_cache(maxsize=4096)
def facts_of(document: str) -> Mapping[str, str]:
    """The facts of a biography, as far as they can be read."""
    matches = {attribute: re.search(pattern, document) for attribute, pattern in _BIOGRAPHY.items()}
    return {attribute: match["value"] for attribute, match in matches.items() if match is not None}


@lru_cache(maxsize=16384)
def stated_in(text: str) -> tuple[StatedFact, ...]:
    """The facts that a text states in sentences of their own, in their order."""
    stated = []
    for match in _STATEMENT.finditer(text):
        attribute = next(name for name in FACTS if match[name] is not None)
        stated.append(StatedFact(attribute, match[f"{attribute}_value"], match.end()))
    return tuple(stated)


def asked_for(question: str) -> tuple[str, str] | None:
    """The attribute and the name that a question asks for; None for another question."""
    for attribute, fact in FACTS.items():
        before, after = fact.question.split("{name}")
        if question.startswith(before) and question.endswith(after):
            return attribute, question[len(before) : len(question) - len(after)]
    return None
