"""Small corpora for the tests of retrieval."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def write_corpus(path: Path, passages: Mapping[str, str]) -> Path:
    """A corpus file of id → text."""
    path.write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in passages.items()))
    return path


def random_passages(count: int, seed: int = 0, vocabulary: int = 40) -> dict[str, str]:
    """Passages of 0 to 12 words, frequent ones repeated often, with ids that are not in order of their rows."""
    random_ = random.Random(seed)
    words = [a + b for a in SYLLABLES for b in SYLLABLES][:: 3600 // vocabulary][:vocabulary]
    weights = [1 / (1 + i) for i in range(vocabulary)]
    ids = [f"p{i}" for i in range(count)]
    random_.shuffle(ids)
    return {id: " ".join(random_.choices(words, weights, k=random_.randrange(13))) for id in ids}


def random_queries(count: int, seed: int = 1, vocabulary: int = 40) -> list[str]:
    """Queries of words of the same vocabulary, some of them repeated, some unknown."""
    texts = random_passages(count, seed, vocabulary).values()
    return [f"{text} unheard {text.split()[0] if text else ''}" for text in texts]
