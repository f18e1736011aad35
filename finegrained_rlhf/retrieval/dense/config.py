"""A frozen encoder and how it reads: the settings of dense retrieval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import ModelName, at_least
from finegrained_rlhf.retrieval.dense.texts import TextEncoder


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
