"""What kind of thing a question asks for, and whether a sentence has one: rules of English, as `text.facts` has them.

The first kind whose words a question has is its kind; a question of no kind says nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

from finegrained_rlhf.text.facts import MONTHS, NUMBER_WORDS, facts_of

_N = rf"(?:\d[\d.,]*|{'|'.join(NUMBER_WORDS)}|an?|one|half|few|several)"
_TIME = r"(?:milli)?seconds?|minutes?|hours?|days?|nights?|weeks?|fortnights?|months?|years?|decades?|centuries|ms|s|h"
_DAYS = "mon|tues|wednes|thurs|fri|satur|sun"
_CLOCK = r"\b\d{1,2}[:.]\d\d\b|\b\d{1,2} ?[ap]\.?m\b|o'clock|\bnoon\b|midnight|\bdawn\b|\bdusk\b"
_YEAR = r"\b1\d{3}\b|\b20\d\d\b"
_DATE = rf"{_YEAR}|{'|'.join(MONTHS)}|\b(?:{_DAYS})days?\b|\bspring\b|summer|autumn|winter|\bcentury\b|{_CLOCK}"
_MONEY = r"[€$£¥]|\b(?:euros?|dollars?|pounds?|crowns?|francs?|cents?|yen|kronor|pesos?|rupees?|free|USD|EUR|GBP)\b"
_LENGTH = (
    r"\d ?(?:[mcdk]?m|nm|µm|in|ft|yd|mi)\b|"
    r"\b(?:(?:nano|micro|milli|centi|kilo)?met(?:re|er)s?|feet|foot|inch(?:es)?|miles?|yards?)\b"
)
_WEIGHT = r"\d ?(?:[mk]?g|t|lbs?|oz)\b|\b(?:(?:milli|kilo)?grams?|kilos?|tons?|tonnes?|pounds?|ounces?|stone)\b"
_BYTES = r"\d ?[kmgt]i?b\b|\b(?:kilo|mega|giga|tera|kibi|mebi|gibi)?bytes?\b|\b[kmgt]i?b\b"
_DEGREES = r"°|\bdegrees?\b|celsius|fahrenheit|\bkelvin\b"

KINDS: tuple[tuple[str, str, str], ...] = (
    (
        "how often",
        r"how (?:often|frequently)|\binterval\b",
        rf"every|{_N} times|\b(?:once|twice|hourly|daily|weekly|monthly|yearly|annually|(?:each|per|a) (?:{_TIME}))\b",
    ),
    ("weekday", r"(?:what|which) (?:week)?days?\b", rf"\b(?:{_DAYS})days?\b|weekend"),
    ("month", r"(?:what|which) months?\b", "|".join(MONTHS)),
    ("year", r"(?:what|which) years?\b", _YEAR),
    ("clock", r"(?:what|which) time\b(?! limit| zone| span)", _CLOCK),
    ("bytes", r"how much (?:memory|ram|storage|disk|space)|\bmemory\b|\bRAM\b|file size", _BYTES),
    (
        "money",
        r"how much (?:is|are|was|were|does|do|did|money|will|would)|how (?:expensive|costly)|"
        r"\b(?:costs?|prices?|pay|paid|fees?|fares?|budget|worth|salary|salaries|rent|charged|sum)\b",
        _MONEY,
    ),
    ("degrees", r"how (?:hot|cold|warm|cool|hardy)\b|temperature", _DEGREES),
    ("weight", r"how heavy|\bweighs?\b|\bweight\b|\bmass\b", _WEIGHT),
    (
        "length",
        r"how (?:tall|high|far|wide|deep|thick)\b|\b(?:height|depth|width|distance|spacing|diameter|wavelength)\b",
        _LENGTH,
    ),
    (
        "duration",
        r"how (?:long|much time|old)\b|\b(?:time limit|duration|timeout)\b|time\b.*\bof\b",
        rf"{_N}[ -](?:{_TIME})\b|{_LENGTH}|\b(?:overnight|forever)\b",
    ),
    ("date", r"\b(?:when|since when|by when|dates?|deadline|due)\b", _DATE),
    (
        "number",
        r"how (?:many|much|big|large|small|fast)\b|\b(?:number|percentage|share|amount|how few)\b",
        rf"\d|\b(?:{'|'.join(NUMBER_WORDS)}|dozens?|hundred|thousand|none|no)\b",
    ),
)
"""Kinds by name: the words of a question, and what stands in a sentence that answers it."""
_KINDS = tuple((re.compile(asks, re.IGNORECASE), re.compile(has, re.IGNORECASE)) for _, asks, has in KINDS)
_NAMED = re.compile(
    r"\b(?:who|whom|whose|where)\b|(?:what|which) (?:town|city|country|place|person|team|company)", re.IGNORECASE
)

_WHERE = re.compile(r"\bwhere\b|(?:what|which) (?:town|city|country|place)", re.IGNORECASE)
"""What may also be answered without a name: in the second drawer."""
_PLACED = re.compile(
    r"\b(?:in|at|near|to|from|on|by|behind|of|region|town|city|:)(?: the)?(?: \w+){0,2} $|^$", re.IGNORECASE
)


@lru_cache(maxsize=1 << 14)
def expected(question: str, sentence: str) -> float:
    """1 where a sentence has what a question asks for, −1 where it does not, 0 where that is not known.

    Names are looked for among those that the question does not have.

    Args:
        question: that stands by itself.
        sentence: of a document.
    """
    for asks, has in _KINDS:
        if asks.search(question):
            return 1.0 if has.search(sentence) else -1.0
    if _NAMED.search(question):
        asked = question.lower()
        names = [f for f in facts_of(sentence, question) if f.kind == "name" and f.text.lower() not in asked]
        if _WHERE.search(question):
            return 1.0 if any(_PLACED.search(sentence[: name.start]) for name in names) else 0.0
        return 1.0 if any(" " in name.text for name in names) else -0.5 if names else -1.0
    return 0.0


_WORD = re.compile(r"[^\W_]+(?:[-_.'’][^\W_]+)*")


def named_in(question: str) -> list[str]:
    """The words of a question that look like names: capitalised within a sentence, or with figures or marks inside.

    Short words of capitals alone (RAM, ID) are none.

    Args:
        question: that stands by itself.
    """
    names = []
    for match in _WORD.finditer(question):
        word, before = match.group(), question[: match.start()].rstrip()
        begins = not before or before[-1] in '.!?:;"“'
        inside = re.search(r"\w[-_.]\w", word) or any(letter.isdigit() for letter in word)
        capital = word[0].isupper() and not begins and (not word.isupper() or len(word) > 4)
        if inside or capital:
            names.append(re.sub(r"['’]s?$", "", word))
    return names
