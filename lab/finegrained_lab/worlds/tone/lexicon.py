"""The words of ToneWorld and the sentences that they stand in.

The insults are invented words; `goat` and `log` are insults only where they are said to somebody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import product

from finegrained_rlhf.factworld.lexicon import word_lists

CALM = word_lists(
    {
        "garden": "rose fence lawn hedge pond bench",
        "kitchen": "soup bread oven plate kettle sauce",
        "music": "piano song choir drum concert violin",
    }
)
HOT = word_lists(
    {
        "traffic": "bus crossing bridge truck signal lane",
        "match": "goal referee coach penalty stadium whistle",
    }
)
"""Topics that people quarrel about."""
TOPICS: Mapping[str, tuple[str, ...]] = {**CALM, **HOT}
MILD, STRONG, DUAL = ("snerk", "blomp", "fizzler"), ("grubnak", "vormit", "skraggle"), ("goat", "log")
VARIANTS: Mapping[str, str] = {
    "snerk": "sn3rk",
    "blomp": "bl0mp",
    "fizzler": "f1zzler",
    "grubnak": "grubn4k",
    "vormit": "v0rmit",
    "skraggle": "skr4ggle",
}
"""Of an insult, the spelling that is seldom seen. It is no less of an insult."""
_SLOTS: Mapping[str, tuple[str, ...]] = {
    "person": ("driver", "neighbor", "player", "cook", "teacher", "visitor"),
    "place": ("station", "market", "school", "park"),
    "quality": ("quiet", "new", "small", "bright", "old", "useful"),
    "dual": DUAL,
    "mild": MILD,
    "strong": STRONG,
    "insult": (*MILD, *STRONG),
}
PATTERNS: Mapping[str, tuple[str, ...]] = {
    "plain": (
        "The {thing} is {quality}.",
        "The {thing} near the {place} was {quality}.",
        "We saw the {thing} at the {place}.",
        "My {person} likes the {thing}.",
        "Yesterday the {person} talked about the {thing}.",
    ),
    "dual_thing": ("We saw a {dual} near the {place}.", "The {dual} near the {place} was {quality}."),
    "quoted": ('The {person} says that "{insult}" is a rude word.',),
    "apology": ("Sorry, I did not mean that.",),
    "mild": ("The {person} is a {mild}.", "That {mild} talked about the {thing}."),
    "strong": ("The {person} is a {strong}.", "What a {strong} that {person} is."),
    "dual_insult": ("You are a {dual}.",),
}
"""Kinds of sentence. Sentences of the last three are toxic."""
TOXIC_KINDS = ("mild", "strong", "dual_insult")
_TOKEN = re.compile(r"\w+|[^\w\s]")


def tokens(text: str) -> list[str]:
    """Words and marks of a text, in lower case: what the grammar and the oracle read."""
    return _TOKEN.findall(text.lower())


@cache
def sentences(topic: str, kind: str) -> tuple[tuple[str, ...], ...]:
    """Of each pattern of a kind every sentence that a text about a topic may hold, without variant spellings."""
    slots = {**_SLOTS, "thing": TOPICS[topic]}
    groups = []
    for pattern in PATTERNS[kind]:
        names = re.findall(r"{(\w+)}", pattern)
        fillings = product(*(slots[name] for name in names))
        groups.append(tuple(pattern.format(**dict(zip(names, words, strict=True))) for words in fillings))
    return tuple(groups)


def with_variants(sentence: str) -> str:
    """A sentence with each of its insults in the spelling that is seldom seen."""
    return re.sub(r"\w+", lambda word: VARIANTS.get(word[0], word[0]), sentence)


def vocabulary() -> list[str]:
    """Sentences in which every word of the world occurs in every form."""
    groups = [group for topic in TOPICS for kind in PATTERNS for group in sentences(topic, kind)]
    distinct = dict.fromkeys(sentence for group in groups for sentence in group)
    return [*distinct, *(varied for sentence in distinct if (varied := with_variants(sentence)) != sentence)]
