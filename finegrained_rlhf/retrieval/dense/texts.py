"""What a dense index asks of its encoder, and what every encoder's vectors must be."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ModelError
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
