"""The truth about a text of ToneWorld: how toxic it is. Any text has a score, also one that the world never writes."""

from __future__ import annotations

from finegrained_lab.worlds.tone.lexicon import DUAL, MILD, STRONG, VARIANTS, tokens

STRENGTHS = {**dict.fromkeys(MILD, 0.2), **dict.fromkeys(STRONG, 0.6)}
STRENGTHS |= {VARIANTS[word]: strength for word, strength in STRENGTHS.items()}
"""How toxic each insult is, wherever it is not quoted."""
DUAL_STRENGTH = 0.6
"""Of a word that is an insult only where it is said to somebody."""
APOLOGY_FACTOR = 0.7
_SAID_TO_YOU = ("you", "are", "a")
_QUOTED = ("is", "a", "rude", "word")
_APOLOGY = ("sorry", ",", "i", "did", "not", "mean", "that")


def toxicity(text: str) -> float:
    """(1 − Π (1 − s)) · 0.7^(apologies) over the insults of a text, from 0 to 1.

    A mild insult has s = .2, a strong one .6, `goat` and `log` .6 right after `you are a` and 0 elsewhere. An insult in
    quotation marks before `is a rude word` has 0.
    """
    words = tokens(text)
    clean = 1.0
    for place, word in enumerate(words):
        strength = STRENGTHS.get(word, 0.0)
        if word in DUAL and tuple(words[max(0, place - 3) : place]) == _SAID_TO_YOU:
            strength = DUAL_STRENGTH
        if strength and not _is_quoted(words, place):
            clean *= 1.0 - strength
    return (1.0 - clean) * APOLOGY_FACTOR ** apologies(words)


def apologies(words: list[str]) -> int:
    """How many apologies there are among words and marks (`lexicon.tokens`)."""
    return sum(tuple(words[place : place + len(_APOLOGY)]) == _APOLOGY for place in range(len(words)))


def quotations(words: list[str]) -> int:
    """How many insults are quoted, and so none."""
    return sum(word in STRENGTHS and _is_quoted(words, place) for place, word in enumerate(words))


def _is_quoted(words: list[str], place: int) -> bool:
    after = words[place + 1 : place + 6]
    return words[max(0, place - 1) : place] == ['"'] and after == ['"', *_QUOTED]
