"""Corpora and rewrites for the retrieval benchmark, generated from a seed.

Knows words whose frequencies follow Zipf's law, as those of a language do. Knows no index.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from finegrained_rlhf.core.files import atomic_path

VOCABULARY = 500_000
LENGTH = 12
"""Mean words of a passage where nothing else is said; lengths are Poisson."""
_ONSETS, _VOWELS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"), "aeiou"
_CHUNK = 100_000


def vocabulary(size: int = VOCABULARY) -> list[str]:
    """Different pronounceable words, short ones first, as frequent words are short."""
    syllables = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    found = []
    for number in range(size):
        word, rest = "", number + len(syllables)  # two syllables at least
        while rest:
            rest, last = divmod(rest, len(syllables))
            word = syllables[last] + word
        found.append(word)
    return found


def passages(count: int, seed: int = 0, length: int = LENGTH) -> Iterator[tuple[str, str]]:
    """Ids and texts of a corpus, of `length` words on average."""
    words = np.array(vocabulary(), dtype=object)
    cumulative = np.cumsum(1 / (np.arange(1, len(words) + 1) + 2.7) ** 1.05)  # Zipf–Mandelbrot
    cumulative /= cumulative[-1]
    draw = np.random.default_rng(seed)
    chunk = max(1, _CHUNK * LENGTH // length)  # passages that are drawn together
    for start in range(0, count, chunk):
        lengths = np.maximum(1, draw.poisson(length, min(chunk, count - start)))
        drawn = words[np.searchsorted(cumulative, draw.random(int(lengths.sum()), dtype=np.float64))]
        ends = np.cumsum(lengths).tolist()
        for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True), start):
            yield f"passage_{number}", " ".join(drawn[begin:end])


def write_corpus(path: Path, count: int, length: int = LENGTH) -> None:
    """Write a corpus file of passages of `length` words on average; one that exists is kept."""
    if path.exists():
        return
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for id, text in passages(count, length=length):
            stream.write(json.dumps({"id": id, "text": text}) + "\n")


def rewrites(texts: list[str], groups: int, samples: int, seed: int = 0) -> list[str]:
    """What a policy writes: `samples` queries of 4 to 12 words a group, drawn from the group's passage and another one.

    Args:
        texts: passages.
        groups: questions of a batch.
        samples: rewrites a question.
        seed: of the draw.
    """
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(groups):
        words = [word for i in draw.integers(len(texts), size=2) for word in texts[i].split()]
        found += [" ".join(draw.choice(words, draw.integers(4, 13)).tolist()) for _ in range(samples)]
    return found
