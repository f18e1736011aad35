"""Where words that a model quotes lie in the text that it read, also where it quotes them a little otherwise.

First the words as they are; then without case, marks and forms of letters; then the parts around an ellipsis; last the
place that has most of the quoted words. Two places that are as good are none.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from finegrained_rlhf.text.segmentation import Span

OVERLAP = 0.6
"""Share of a quote's words that a place must have, at least `FEWEST` of them, to be what a paraphrase means."""
FEWEST = 3
_LONGEST = 400  # words of a quote that is compared word by word
_ALONE = r"\u3040-\u30ff\u3400-\u9fff"  # letters of scripts without blanks, each a word of its own
_WORD = re.compile(rf"[{_ALONE}]|(?:[^\W{_ALONE}][\u0300-\u036f]*)+")
_ELLIPSIS = re.compile(r"\s*(?:\[\s*(?:…|\.{3,})\s*\]|…|\.{3,})\s*")


def spans_of(quotes: Sequence[str], text: str) -> list[Span | None]:
    """Where quotes lie in a text; None where one cannot be found.

    The same quote for the second time lies in its second place; once more than it has places, in its last one.
    """
    before = Counter[str]()
    spans = []
    for quote in quotes:
        place = span_of(quote, text, before[quote])
        if place is None and before[quote]:
            place = next((p for n in range(before[quote] - 1, -1, -1) if (p := span_of(quote, text, n))), None)
        spans.append(place or near_span_of(quote, text))
        before[quote] += 1
    return spans


def span_of(quote: str, text: str, occurrence: int = 0) -> Span | None:
    """Where a quote lies in a text, in whole words, any white space for any other; None where it does not.

    Args:
        quote: some words of the text.
        text: the text.
        occurrence: which place of several, from 0.
    """
    words = quote.split()
    if not words:
        return None
    edges = (r"(?<!\w)" if re.match(r"\w", words[0]) else "", r"(?!\w)" if re.search(r"\w$", words[-1]) else "")
    pattern = edges[0] + r"\s+".join(map(re.escape, words)) + edges[1]
    matches = [match.span() for match in re.finditer(pattern, text)]
    return matches[occurrence] if occurrence < len(matches) else None


def near_span_of(quote: str, text: str) -> Span | None:
    """Where a quote lies that is not word for word in a text; None where it is nowhere, or in two places as well."""
    words = _words(text)
    parts = [part for part in (_words(part) for part in _ELLIPSIS.split(quote)) if part]
    if not parts or sum(map(len, parts)) > _LONGEST:
        return None
    place, spans = 0, []
    for part in parts:
        at = _find([word.plain for word in part], [word.plain for word in words], place)
        if at is None:
            return _nearest([word.plain for part in parts for word in part], words)
        spans.append((words[at].start, words[at + len(part) - 1].end))
        place = at + len(part)
    return spans[0][0], spans[-1][1]


@dataclass(frozen=True)
class _Word:
    """A word of a text: without case and form, and where it stands."""

    plain: str
    start: int
    end: int


def _words(text: str) -> list[_Word]:
    return [
        _Word(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", match[0]).casefold()), *match.span())
        for match in _WORD.finditer(text)
    ]


def _find(part: Sequence[str], words: Sequence[str], place: int) -> int | None:
    """The first place from `place` on at which the words of a part stand one after the other."""
    wanted = list(part)
    ends = range(place, len(words) - len(part) + 1)
    return next((at for at in ends if words[at] == wanted[0] and list(words[at : at + len(part)]) == wanted), None)


def _nearest(quoted: Sequence[str], words: Sequence[_Word]) -> Span | None:
    """The words of the window of the quote's length that has most of the quoted words, if they are enough."""
    size = min(len(quoted), len(words))
    wanted = Counter(quoted)
    best, places, here = 0, list[int](), Counter(word.plain for word in words[:size])
    shared = sum((wanted & here).values())
    for at in range(len(words) - size + 1):
        if at:
            shared += _moved(words[at - 1].plain, words[at + size - 1].plain, here, wanted)
        if shared >= best:
            best, places = shared, [*places, at] if shared == best else [at]
    enough = best >= max(OVERLAP * len(quoted), FEWEST)
    if not enough or places[-1] - places[0] >= size:  # windows that do not meet are two places
        return None
    inside = [word for word in words[places[0] : places[-1] + size] if word.plain in wanted]
    return inside[0].start, inside[-1].end


def _moved(left: str, come: str, here: Counter[str], wanted: Counter[str]) -> int:
    """Take a word out of a window and another in; returns by how much the window shares more with the quote."""
    change = -(here[left] <= wanted[left])
    here[left] -= 1
    here[come] += 1
    return change + (here[come] <= wanted[come])
