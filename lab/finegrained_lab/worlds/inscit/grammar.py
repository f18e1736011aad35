"""The sentences of InscitWorld: what passages and answers state, written and read again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from finegrained_lab.worlds.inscit.lexicon import ENTITY_KINDS, PERIODS, SECTION_OF, SECTIONS, TOPICS

PASSAGE_SENTENCES: tuple[str, ...] = (
    "In the {period} period the {attribute} of {entity} was the {value}.",
    "The {value} was the {attribute} of {entity} in the {period} period.",
    "The {attribute} of {entity} in the {period} period was the {value}.",
)
"""Ways in which a passage states a fact; answers have the last one."""


@dataclass(frozen=True)
class Statement:
    """That an entity had a value of an attribute in a period, or, without the value, that it had one.

    Attributes:
        kind: of the entity; empty in what names none, which says it of any entity of the name.
        name: of the entity.
        attribute: of the lexicon, or `topics`.
        period: empty for `topics`.
        value: empty for an option that a question offers.
    """

    kind: str
    name: str
    attribute: str
    period: str
    value: str = ""

    @property
    def entity(self) -> str:
        """The entity with its kind: `town Arden Ulver`."""
        return f"{self.kind} {self.name}"

    @property
    def option(self) -> Statement:
        """The same without its value; all topics of an entity are one option."""
        return replace(self, value="")

    @property
    def folded(self) -> Statement:
        """The same in small letters, as texts are read."""
        return replace(self, name=self.name.lower(), value=self.value.lower())


def told(facts: Sequence[Statement]) -> str:
    """An answer that states facts: a sentence each, and one for all topics of an entity."""
    sentences: dict[str, None] = {}
    for fact in facts:
        if fact.attribute == TOPICS:
            topics = [one.value for one in facts if one.option == fact.option]
            sentences[f"The topics of the {fact.entity} are {_listed(topics, 'and')}."] = None
        else:
            sentences[
                PASSAGE_SENTENCES[-1].format(
                    attribute=fact.attribute, entity=f"the {fact.entity}", period=fact.period, value=fact.value
                )
            ] = None
    return " ".join(sentences)


def offered(options: Sequence[Statement]) -> str:
    """A question that lists options of one attribute: periods of one entity, or entities of one name."""
    parts = []
    for entity in dict.fromkeys(option.entity for option in options):
        periods = [option.period for option in options if option.entity == entity and option.period]
        when = f" in the {_listed(periods, 'or')} period" if periods else ""
        parts.append(f"of the {entity}{when}")
    return f"Do you mean the {options[0].attribute} {' or '.join(parts)}?"


def related(missing: str, facts: Sequence[Statement]) -> str:
    """An answer that lacks what was asked for, and states other facts: `I found nothing about …, but …`.

    Args:
        missing: what it lacks, such as `the late period`.
        facts: at least one.
    """
    text = told(facts)
    return f"I found nothing about {missing}, but {text[0].lower()}{text[1:]}"


def _listed(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


_ATTRIBUTE, _PERIOD = "|".join(SECTION_OF), "|".join(PERIODS)
_ENTITY = rf"(?:the )?(?:(?P<kind>{'|'.join(ENTITY_KINDS)}) )?(?P<name>\w+ \w+?)"
_VALUE = r"(?P<value>\w+ \w+(?: \w+)?)"
_FACTS = tuple(
    re.compile(
        sentence.removesuffix(".")
        .lower()
        .format(period=f"(?P<period>{_PERIOD})", attribute=f"(?P<attribute>{_ATTRIBUTE})", entity=_ENTITY, value=_VALUE)
    )
    for sentence in PASSAGE_SENTENCES
)
_TOPICS_TOLD = re.compile(rf"the topics of {_ENTITY} are (?P<list>[\w, ]+)")
_OFFER = re.compile(rf"do you mean the (?P<attribute>{_ATTRIBUTE}|topics) (?P<rest>[\w, ]+)")
_OFFERED = re.compile(rf"of {_ENTITY}(?: in the (?P<list>[\w, ]+?) period|(?= or\b)|$)")
_SECTIONS = frozenset(section.lower() for section in SECTIONS)


def read_statements(text: str) -> list[Statement]:
    """What a text states or offers, each once, in small letters; what is no sentence of the world states nothing.

    The sentences of answers and of passages are read, in any case of letters and with blanks before marks. A statement
    may be false: an entity that does not exist, a value that it does not have.
    """
    statements: dict[Statement, None] = {}
    for part in folded_sentences(text):
        for statement in _read_sentence(part):
            statements[statement] = None
    return list(statements)


def folded_sentences(text: str) -> list[str]:
    """The sentences of a text, in small letters, white space collapsed, without their last mark."""
    plain = re.sub(r"\s+([.,?!])", r"\1", " ".join(text.lower().split()))
    return [part.strip() for part in re.split(r"[.?!]", plain) if part.strip()]


def _read_sentence(sentence: str) -> list[Statement]:
    if offer := _OFFER.search(sentence):
        return [
            Statement(part["kind"] or "", part["name"], offer["attribute"], period)
            for part in _OFFERED.finditer(offer["rest"])
            for period in (_words(part["list"]) if part["list"] else [""])
        ]
    if topics := _TOPICS_TOLD.search(sentence):
        kind, name = topics["kind"] or "", topics["name"]
        return [Statement(kind, name, TOPICS, "", word) for word in _words(topics["list"]) if word in _SECTIONS]
    for pattern in _FACTS:
        if fact := pattern.search(sentence):
            return [Statement(fact["kind"] or "", fact["name"], fact["attribute"], fact["period"], fact["value"])]
    return []


def _words(listed: str) -> list[str]:
    return [word for word in re.findall(r"\w+", listed) if word not in ("and", "or")]
