"""Where words that a model quotes lie in the text that it read. Knows texts alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from finegrained_rlhf.text.segmentation import Span


def spans_of(quotes: Sequence[str], text: str) -> list[Span | None]:
    """Where quotes lie in a text: the same one for the second time in its second place; None where it is not there."""
    before = Counter[str]()
    found = []
    for quote in quotes:
        found.append(span_of(quote, text, before[quote]))
        before[quote] += 1
    return found


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
