"""A frozen encoder and how it reads: the settings of dense retrieval, and what every encoder's vectors must be."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import ModelName, at_least
from finegrained_rlhf.dialogue.records import Passage

if TYPE_CHECKING:
    from torch import Tensor

TextKind = Literal["query", "passage"]


class TextEncoder(Protocol):
    """Gives the vectors of queries and passages.

    Attributes:
        dimension: of the vectors.
        batch_size: texts that are encoded together.
    """

    dimension: int
    batch_size: int

    @property
    def identity(self) -> dict[str, Any]:
        """All that the vectors of passages depend on but precision and device, as JSON."""
        ...

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Vectors of texts, fp32 [N, dimension]."""
        ...

    def parts(self, passage: Passage) -> tuple[str, ...]:
        """What of a passage is read; passages that are alike in it have one vector."""
        ...

    def encode_parts(self, passages: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """Vectors of passages by what is read of them, fp32 [N, dimension]."""
        ...


def checked_vectors(encoded: Tensor, similarity: str, name: str) -> NDArray[np.float32]:
    """An encoder's vectors as fp32 on the CPU.

    Args:
        encoded: [N, dimension].
        similarity: `cosine` makes them of length 1, `dot` leaves them.
        name: of the encoder, for the error.

    Returns:
        fp32 [N, dimension].

    Raises:
        ModelError: they are not all finite.
    """
    import torch

    vectors = encoded.float().cpu()
    if not bool(torch.isfinite(vectors).all()):
        raise ModelError(f"{name}: gives vectors with NaN or infinite numbers")
    if similarity == "cosine":
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
    array: NDArray[np.float32] = vectors.numpy()
    return array


def pooled(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector a text from the last hidden states of its tokens.

    Args:
        hidden: [B, T, D].
        mask: [B, T], 1 = real token; a text without a real token gives zeros.
        pooling: `mean` over the real tokens, or `cls` for the first token.

    Returns:
        [B, D].
    """
    assert hidden.dim() == 3 and mask.shape == hidden.shape[:2], "expected hidden [B, T, D] and mask [B, T]"
    if pooling == "cls":
        return hidden[:, 0] * mask[:, :1]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def encoder_fingerprint(directory: Path) -> str:
    """A hash of a model directory's weights, tokenizer and configuration, the same wherever the directory lies."""
    digest = hashlib.sha256()
    kinds = (".safetensors", ".json", ".txt", ".model")
    for file in sorted(file for file in directory.rglob("*") if file.is_file() and file.suffix in kinds):
        with open(file, "rb") as stream:
            digest.update(file.relative_to(directory).as_posix().encode() + b"\0")
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class EncoderConfig(Settings):
    """A frozen encoder, or the two towers of dense passage retrieval, and how it reads.

    Attributes:
        path: directory or Hub name of a sentence-transformers model or of a plain Hugging Face encoder; null for two
            towers.
        query: directory, run of `finegrained train-dpr` or Hub name of a tower for queries, with `passage` instead of
            `path`.
        passage: the same of a tower for passages, which reads the pair of title and text.
        pooling: how the hidden states of a plain encoder become one vector: `mean` over the tokens or `cls`, the first
            one. null: as the sentence-transformers directory says, `mean` for a plain one. Towers have `cls`.
        similarity: `cosine` (vectors of length 1) or `dot`; null: `cosine`, and `dot` for two towers.
        query_prefix: put before each query. null: the prompt that a sentence-transformers directory has for queries,
            nothing where it has none. Towers take none.
        passage_prefix: put before each passage; null as above.
        max_length: longest text in tokens; the rest is cut off. An encoder that takes less cuts earlier.
        batch_size: texts that are encoded together.
        device: `cpu` or `cuda`; null: a GPU where there is one.
        precision: `fp32`, or `bf16` for bf16 autocast; null: bf16 on a GPU. Vectors are fp32 either way.
        processes: that encode a corpus, one a GPU or sharing the CPU's threads; queries are encoded by one.
    """

    path: ModelName | None = None
    query: ModelName | None = None
    passage: ModelName | None = None
    pooling: Literal["mean", "cls"] | None = None
    similarity: Literal["cosine", "dot"] | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    max_length: Annotated[int, at_least(1)] = 384
    batch_size: Annotated[int, at_least(1)] = 64
    device: str | None = None
    precision: Literal["fp32", "bf16"] | None = None
    processes: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        self._check_places()

    def _check_places(self) -> None:
        """One model, or two towers, which fix how they read."""
        towers = (self.query is not None, self.passage is not None)
        if (self.path is not None) == all(towers) or any(towers) != all(towers):
            raise ConfigError("encoder: expected path, one model, or without it query and passage, two towers")
        if self.path is not None:
            return
        if self.pooling == "mean":
            raise ConfigError("encoder.pooling: towers are read by their first token, expected cls or null, got 'mean'")
        for name in ("query_prefix", "passage_prefix"):
            if getattr(self, name) is not None:
                raise ConfigError(f"encoder.{name}: towers have none, expected null, got {getattr(self, name)!r}")

    @property
    def compared_by(self) -> Literal["cosine", "dot"]:
        """The similarity, where null stands for that of the kind of encoder."""
        return self.similarity or ("dot" if self.path is None else "cosine")

    def load(self) -> TextEncoder:
        """Open the encoder.

        Raises:
            ModelError: no readable encoder.
            ConfigError: sentence-transformers is needed and not installed, or the device is not there.
        """
        from finegrained_rlhf.retrieval.dense.encoder import load_encoder

        return load_encoder(self)
