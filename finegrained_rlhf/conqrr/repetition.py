"""How much a text repeats itself. Knows words. Does not know where a text comes from."""

from __future__ import annotations

from collections.abc import Sequence

from finegrained_rlhf.text.span_f1 import word_tokens


def words_with_letters(text: str) -> list[str]:
    """The lower-case words of a text; tokens without a letter or digit are no words here."""
    return [token for token in word_tokens(text) if any(map(str.isalnum, token))]


def repeated_bigram_share(words: Sequence[str]) -> float:
    """1 − (different pairs of neighbouring words) / (all of them): 0 where no pair comes twice, near 1 in a loop.

    It is 1 − distinct-2 (Li et al., 2016). A word three times in a row repeats its pair once.

    Args:
        words: of a text, in order.

    Returns:
        0 to 1; 0 for fewer than two words.
    """
    pairs = list(zip(words, words[1:], strict=False))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0
