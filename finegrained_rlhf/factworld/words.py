"""What the lexicons of all worlds share: word lists by name."""

from __future__ import annotations

from collections.abc import Mapping


def word_lists(lists: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Each list of words, written as one text with blanks between them, as a tuple."""
    return {name: tuple(words.split()) for name, words in lists.items()}
