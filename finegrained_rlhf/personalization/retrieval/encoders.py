"""Contexts as vectors: hashed words, which need nothing, or a sentence encoder."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.protocol import words_and_marks
from finegrained_rlhf.retrieval.dense.config import EncoderConfig

if TYPE_CHECKING:
    from finegrained_rlhf.retrieval.dense.texts import TextEncoder


class ContextEncoder(Protocol):
    """The representation φ of contexts (Gao et al. 2024, algorithm 1)."""

    @property
    def identity(self) -> str:
        """All that vectors depend on; vectors of two identities are never compared."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of N texts, fp32 [N, D], each of length 1 or, for a text without content, 0."""
        ...


@dataclass(frozen=True)
class HashedWords(Settings):
    """Counts of words, hashed to a fixed number of places: √count, times idf where there are weights, of length 1.

    Nothing is learnt of the texts that are encoded, so that vectors of different users and processes can be compared,
    and nothing has to be forgotten.

    Attributes:
        dimension: number of places D.
        idf: weight of each place, [D]; () weighs all alike. `fitted` computes them of public texts.
    """

    dimension: int = 1024
    idf: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.dimension < 1 or len(self.idf) not in (0, self.dimension):
            raise ConfigError(f"expected a dimension of 1 or more and as many idf, got {self.dimension}")

    @classmethod
    def fitted(cls, texts: Sequence[str], dimension: int = 1024) -> HashedWords:
        """With idf = ln((1 + N) / (1 + n)) + 1 of places that n of N public texts use.

        Args:
            texts: that belong to no user: their statistics stay in every vector.
            dimension: number of places.
        """
        counts = Counter(place for text in texts for place in {_place(word, dimension) for word in _words(text)})
        total = 1 + len(texts)
        return cls(dimension, tuple(math.log(total / (1 + counts[place])) + 1.0 for place in range(dimension)))

    @cached_property
    def identity(self) -> str:
        """Dimension and a checksum of the weights."""
        weights = f" idf {zlib.crc32(np.asarray(self.idf).tobytes()):08x}" if self.idf else ""
        return f"hashed words {self.dimension}{weights}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of N texts, fp32 [N, D]; zeros for a text without a word."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for place, count in Counter(_place(word, self.dimension) for word in _words(text)).items():
                row[place] = math.sqrt(count) * (self.idf[place] if self.idf else 1.0)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _words(text: str) -> list[str]:
    return [word for word in words_and_marks(text.lower()) if word.isalnum()]


def _place(word: str, dimension: int) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % dimension


@dataclass(frozen=True)
class ModelContexts(Settings):
    """A frozen sentence encoder, such as all-MiniLM-L6-v2 or a plain BERT; it is loaded when it is first asked.

    The paper's encoders are masked means of the last layer, 512 tokens, length 1: a plain encoder with
    `max_length: 512` and the default pooling.

    Attributes:
        encoder: which, and how it reads; its similarity must be `cosine`.
    """

    encoder: EncoderConfig

    def __post_init__(self) -> None:
        if self.encoder.compared_by != "cosine":
            raise ConfigError("encoder.similarity: contexts are compared by cosine")

    @cached_property
    def _loaded(self) -> TextEncoder:
        return self.encoder.load()

    @cached_property
    def identity(self) -> str:
        """The encoder's own identity, with a hash of its weights."""
        return json.dumps(self._loaded.identity, sort_keys=True)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of N texts, fp32 [N, D], of length 1.

        Raises:
            ModelError: no readable encoder, or numbers that are not finite.
        """
        return self._loaded.encode(texts, "passage")
