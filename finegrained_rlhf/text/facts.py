"""Names, numbers and dates of a text, found by rules, and its content words.

The rules know English and no list of names: a name is a run of capitalised words, of which one that begins a sentence
counts only where it is capitalised elsewhere too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

FactKind = Literal["name", "number", "date"]
MONTHS = "January February March April May June July August September October November December".split()
NUMBER_WORDS = "two three four five six seven eight nine ten eleven twelve".split()
"""From 2 on: `one` is a pronoun as well."""

_MONTH = rf"(?:{'|'.join(MONTHS)})"
_DAY, _YEAR = r"(?:[12][0-9]|3[01]|0?[1-9])(?:st|nd|rd|th)?", r"(?:1[0-9]{3}|20[0-9]{2})"
_DATE = re.compile(
    rf"\b(?:{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?|{_MONTH}\s+{_DAY}(?:,?\s+{_YEAR})?(?!\d)|{_MONTH},?\s+{_YEAR}|"
    rf"{_YEAR}(?!,\d|\.\d))\b"
)
_NUMBER = re.compile(rf"(?<![\w.,])\d+(?:,\d{{3}})*(?:\.\d+)?(?!\w)|\b(?:{'|'.join(NUMBER_WORDS)})\b")
_WORD = re.compile(r"[^\W_]+(?:['’&-][^\W_]+)*")
_BEGINS = re.compile(r"(?:\A|[.!?:;]|\n)[\s\"'“‘(\[]*\Z")
_JOINED = re.compile(r"[ \t](?:(?:of|the|de|la|van|von|der|du)\s){0,2}")
_PEOPLE = re.compile(r"\w{2,}(?:an|ish|ese)")
_COMMON = frozenset(
    "a about after all also although an and any are as at be because been before but by can could did do does during "
    "each either for from had has have he her here him his how however i if in into is it its just like many may might "
    "more most much my no nor not of on once one only or other our over she should since so some such than that the "
    "their them then there these they this those though through to too under until up was we were what when where "
    "which while who whom whose why will with would yes you your".split()
)
"""Words that say nothing of their own."""


@dataclass(frozen=True)
class Fact:
    """A name, number or date in a text.

    Attributes:
        start: its first character.
        end: behind its last one.
        text: its words.
        kind: what it is.
    """

    start: int
    end: int
    text: str
    kind: FactKind

    @property
    def shape(self) -> str:
        """Its type: two facts of one shape can stand in each other's place.

        Of a date and a number the figures are 9 and months M; of a name how many words it has, up to three, and whether
        it is one of letters alone (`BBC`) or of a people (`French` is not known, `Spanish` is).
        """
        if self.kind != "name":
            words = re.sub(_MONTH, "M", self.text)
            return f"{self.kind} {re.sub('[0-9]', '9', words) if re.search('[0-9]', words) else 'word'}"
        count = len(self.text.split())
        if count > 1:
            return f"name of {min(count, 3)}"
        return "letters" if self.text.isupper() else "people" if _PEOPLE.fullmatch(self.text) else "name"


@lru_cache(maxsize=1 << 15)
def content_words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, in order, without those that say nothing of their own."""
    return tuple(word for word in _WORD.findall(text.lower()) if word not in _COMMON)


@lru_cache(maxsize=1 << 15)
def plain(text: str) -> str:
    """A text for comparisons: lower case, one white space between words, straight quotes, no commas in numbers."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", " ".join(text.lower().split()))
    return text.translate(str.maketrans("“”‘’", "\"\"''"))


def stands_in(words: str, text: str) -> bool:
    """Whether a text has these words as whole words, however they are spelt (`plain`); the text is plain already."""
    words, at = plain(words), -1
    while words and (at := text.find(words, at + 1)) >= 0:
        if not (text[max(0, at - 1) : at].isalnum() or text[at + len(words) : at + len(words) + 1].isalnum()):
            return True
    return False


def facts_of(text: str, context: str = "") -> list[Fact]:
    """The names, numbers and dates of a text, in order and apart from one another.

    Args:
        text: any text.
        context: more text, to tell which words that begin a sentence are names.
    """
    facts = [Fact(*match.span(), match.group(), "date") for match in _DATE.finditer(text)]
    facts += _apart(text, facts, [m.span() for m in _NUMBER.finditer(text)], "number")
    names = list(_name_runs(text))
    inside = {word for run in names for word in run[2]} | _inside(context)
    facts += _apart(text, facts, [run[:2] for run in names if run[2] or text[run[0] : run[1]] in inside], "name")
    return sorted(facts, key=lambda fact: fact.start)


@lru_cache(maxsize=1 << 10)
def _inside(text: str) -> frozenset[str]:
    """The words of names of a text that no sentence begins with."""
    return frozenset(word for run in _name_runs(text) for word in run[2])


def _apart(text: str, facts: list[Fact], spans: list[tuple[int, int]], kind: FactKind) -> list[Fact]:
    return [
        Fact(start, end, text[start:end], kind)
        for start, end in spans
        if all(end <= fact.start or fact.end <= start for fact in facts)
    ]


def _name_runs(text: str) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """(start, end, words that are capitalised though no sentence begins with them) of each run of such words."""
    run: list[re.Match[str]] = []
    capitals = (m for m in _WORD.finditer(text) if m.group()[0].isupper() and m.group().lower() not in _COMMON)
    for match in [*capitals, None]:
        if run and (match is None or not _joined(text, run[-1], match)):
            begins = _BEGINS.search(text, max(0, run[0].start() - 8), run[0].start()) is not None
            words = tuple(word.group() for word in run)
            end = run[-1].end() - (2 if words[-1].endswith(("'s", "’s")) else 0)
            if end - run[0].start() > 1:  # one letter is no name
                yield run[0].start(), end, words[1:] if begins else words
            run = []
        if match is not None:
            run.append(match)


def _joined(text: str, before: re.Match[str], after: re.Match[str]) -> bool:
    """Whether two capitalised words are of one name: only particles lie between, or the full stop of an initial."""
    stop = len(before.group()) == 1 and text.startswith(".", before.end())
    return _JOINED.fullmatch(text, before.end() + stop, after.start()) is not None
