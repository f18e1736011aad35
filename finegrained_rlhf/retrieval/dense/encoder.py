"""Frozen sentence encoders: texts to vectors.

Reads two kinds of directories: of sentence-transformers (`modules.json`), which say themselves how tokens become one
vector, and of plain Hugging Face encoders, whose last hidden states are pooled here. Two towers, one for queries and
one for passages, are another encoder behind the same settings (`towers.py`).

For the towers of dense passage retrieval a query is one text whose turns are joined by ` [SEP] `, a passage the pair
of its title and its text; both are read as in training (`models/encoders/towers.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import ConfigError, FineGrainedError, ModelError
from finegrained_rlhf.core.hub import place_of_model
from finegrained_rlhf.core.records import on_device
from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage
from finegrained_rlhf.models.encoders.model import input_limit, open_encoder
from finegrained_rlhf.models.encoders.towers import TextTower, TwoTowers
from finegrained_rlhf.models.from_disk import open_sentence_transformer
from finegrained_rlhf.models.loading import load_tokenizer
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.retrieval.bm25.retriever import tokenizer_fingerprint
from finegrained_rlhf.retrieval.dense.config import (
    EncoderConfig,
    TextEncoder,
    TextKind,
    checked_vectors,
    encoder_fingerprint,
    pooled,
)
from finegrained_rlhf.text.plain_text import literal_texts


class TowerEncoder:
    """Two frozen towers; a `TextEncoder`.

    Args:
        query: directory, run or Hub name of the query tower.
        passage: the same of the passage tower.
        similarity: `dot`, or `cosine` for vectors of length 1.
        max_length: longest query and passage in tokens.
        batch_size: texts that are encoded together.
        device: that computes.
        precision: `fp32`, or `bf16` for bf16 autocast.

    Raises:
        ModelError: a tower cannot be read, or the two do not fit.
    """

    def __init__(
        self,
        query: str,
        passage: str,
        similarity: str,
        *,
        max_length: int,
        batch_size: int,
        device: torch.device,
        precision: str,
    ) -> None:
        self._towers = TwoTowers.open(query, passage, max_length, max_length).to(device).eval()
        self._names = {"query": query, "passage": passage}
        self._similarity, self.batch_size = similarity, batch_size
        self.dimension = self._towers.passage.dimension
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Vectors of texts, fp32 [N, dimension]; a text that occurs twice is encoded once.

        Args:
            texts: N queries, or texts of passages without a title.
            kind: which tower reads them.

        Raises:
            ModelError: the tower gives numbers that are not finite.
        """
        if kind == "passage":
            return self.encode_parts([("", text) for text in texts])
        places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        rows = self._towers.query.query_ids([text.split(PART_SEPARATOR) for text in places])
        return self._vectors("query", rows)[[places[text] for text in texts]]

    def parts(self, passage: Passage) -> tuple[str, ...]:
        """Title and text."""
        return passage.title, passage.text

    def encode_parts(self, passages: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """Vectors of passages, fp32 [N, dimension]; one that occurs twice is encoded once.

        Args:
            passages: N pairs of title and text.

        Raises:
            ModelError: the tower gives numbers that are not finite.
        """
        places = {pair: i for i, pair in enumerate(dict.fromkeys(passages))}
        rows = self._towers.passage.passage_ids([(title, text) for title, text in places])
        return self._vectors("passage", rows)[[places[pair] for pair in passages]]

    @property
    def identity(self) -> dict[str, Any]:
        """All that the vectors of passages depend on but precision and device, as JSON, with a hash of the weights.

        The query tower is not among it: another one, trained with the passage tower frozen, searches the same index.
        """
        return {
            "weights": weights_fingerprint(self._towers.passage),
            "tokenizer": tokenizer_fingerprint(self._towers.passage.tokenizer),
            "pooling": "cls",
            "similarity": self._similarity,
            "passage_input": "title and text",
            "max_length": self._towers.passage.max_length,
            "dimension": self.dimension,
        }

    def _vectors(self, kind: TextKind, rows: Sequence[tuple[int, ...]]) -> NDArray[np.float32]:
        tower = self._towers.query if kind == "query" else self._towers.passage
        with torch.inference_mode(), self._autocast:
            encoded = tower.vectors(rows, self.batch_size)
        return checked_vectors(encoded, self._similarity, self._names[kind])


def weights_fingerprint(tower: TextTower) -> str:
    """A hash of all that a tower computes with, the same for a copy that was saved again by a training run."""
    digest, config = hashlib.sha256(), tower.network.config
    for name in ("model_type", "hidden_act", "layer_norm_eps", "num_attention_heads"):
        digest.update(f"{name} {getattr(config, name, None)}\0".encode())
    for name, tensor in sorted(tower.network.state_dict().items()):
        digest.update(f"{name} {list(tensor.shape)}\0".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


class _Backend(Protocol):
    """What turns texts into vectors.

    Attributes:
        dimension: of the vectors.
        prompts: the prefixes that the directory itself has, by kind of text.
        max_length: longest text in tokens.
        tokenizer: of the texts.
    """

    tokenizer: Any
    dimension: int
    prompts: dict[str, str]
    max_length: int

    def encode(self, texts: list[str], prefix: str) -> Tensor: ...


class SentenceEncoder:
    """A frozen encoder.

    Attributes:
        config: its settings.
        dimension: of the vectors.
        batch_size: texts that are encoded together.
    """

    def __init__(self, config: EncoderConfig, device: torch.device, backend: _Backend) -> None:
        self.config = config
        self._device, self._backend = device, backend
        self.dimension, self.batch_size = backend.dimension, config.batch_size
        self._literal = literal_texts(backend.tokenizer)
        self._prefixes: dict[TextKind, str] = {
            "query": backend.prompts.get("query", "") if config.query_prefix is None else config.query_prefix,
            "passage": (
                backend.prompts.get("passage", backend.prompts.get("document", ""))
                if config.passage_prefix is None
                else config.passage_prefix
            ),
        }
        precision = config.precision or ("bf16" if device.type == "cuda" else "fp32")
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Vectors of texts; a text that occurs twice is encoded once. Control tokens in a text are read as words.

        Args:
            texts: N texts; blank ones have a vector as well.
            kind: whose prefix is put before them.

        Returns:
            fp32 [N, dimension], of length 1 for cosine.

        Raises:
            ModelError: the encoder gives numbers that are not finite.
        """
        places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        if not places:
            return np.zeros((0, self.dimension), dtype=np.float32)
        with torch.inference_mode(), self._autocast:
            encoded = self._backend.encode(list(map(self._literal, places)), self._prefixes[kind])
        vectors = checked_vectors(encoded, self.config.compared_by, str(self.config.path))
        return vectors[[places[text] for text in texts]]

    def parts(self, passage: Passage) -> tuple[str, ...]:
        """Title and text as one."""
        return (passage.contents,)

    def encode_parts(self, passages: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """Vectors of passages by their `parts`, fp32 [N, dimension]."""
        return self.encode([contents for (contents,) in passages], "passage")

    @property
    def identity(self) -> dict[str, Any]:
        """All that the vectors of passages depend on but precision and device, as JSON, with a hash of the weights."""
        assert self.config.path is not None
        return {
            "weights": encoder_fingerprint(place_of_model(self.config.path)),
            "pooling": self.config.pooling or "mean",
            "similarity": self.config.compared_by,
            "passage_prefix": self._prefixes["passage"],
            "max_length": self._backend.max_length,
            "dimension": self.dimension,
        }


class _PlainEncoder:
    """A Hugging Face encoder whose last hidden states are pooled."""

    def __init__(self, directory: Path, config: EncoderConfig, device: torch.device) -> None:
        self._model = open_encoder(directory).to(device)
        self.tokenizer = load_tokenizer(directory)
        self._pooling, self._batch_size, self._device = config.pooling or "mean", config.batch_size, device
        self.max_length = input_limit(self._model.config, self.tokenizer, config.max_length)
        self.dimension = int(self._model.config.hidden_size)
        self.prompts: dict[str, str] = {}

    def encode(self, texts: list[str], prefix: str) -> Tensor:
        """fp32 [N, dimension] on the CPU, computed in batches of similar length."""
        prefixed = [prefix + text for text in texts]
        ids = self.tokenizer(prefixed, truncation=True, max_length=self.max_length)["input_ids"]
        vectors = torch.empty(len(texts), self.dimension)
        for places in length_groups([len(row) for row in ids], self._batch_size, batch_overhead(self._device)):
            padded = self.tokenizer.pad({"input_ids": [ids[i] for i in places]}, return_tensors="pt")
            mask = on_device(padded["attention_mask"], self._device)
            hidden = self._model(on_device(padded["input_ids"], self._device), attention_mask=mask).last_hidden_state
            vectors[places] = pooled(hidden.float(), mask, self._pooling).cpu()
        return vectors


class _SentenceTransformer:
    """A model of sentence-transformers, which does its own tokenising, pooling and sorting by length."""

    def __init__(self, directory: Path, config: EncoderConfig, device: torch.device) -> None:
        try:
            with quiet_transformers():
                model = open_sentence_transformer(directory, str(device))
        except FineGrainedError:
            raise
        except Exception as error:  # each module has errors of its own kind
            reason = str(error).strip().split("\n")[0]
            raise ModelError(f"{directory}: cannot be opened as a sentence-transformers model ({reason})") from None
        self._model = model.eval()
        self.tokenizer = model.tokenizer
        self._batch_size = config.batch_size
        own = getattr(model, "max_seq_length", None)
        self.max_length = config.max_length if own is None else min(config.max_length, int(own))
        if own is not None:
            model.max_seq_length = self.max_length
        self.prompts = {kind: prompt for kind, prompt in (model.prompts or {}).items() if prompt}
        with torch.inference_mode():
            self.dimension = int(self.encode(["a"], "").shape[-1])

    def encode(self, texts: list[str], prefix: str) -> Tensor:
        """[N, dimension] on the CPU."""
        vectors: Tensor = self._model.encode(
            texts, prompt=prefix, batch_size=self._batch_size, show_progress_bar=False, convert_to_tensor=True
        )
        return vectors.cpu()


def load_encoder(config: EncoderConfig) -> TextEncoder:
    """Open a sentence encoder or two towers on the device asked for."""
    device = torch.device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("encoder.device: cuda is asked for, but there is no GPU here")
    if config.path is None:
        assert config.query is not None and config.passage is not None
        return TowerEncoder(
            config.query,
            config.passage,
            config.compared_by,
            max_length=config.max_length,
            batch_size=config.batch_size,
            device=device,
            precision=config.precision or ("bf16" if device.type == "cuda" else "fp32"),
        )
    directory = place_of_model(config.path)
    if (directory / "modules.json").is_file():
        if config.pooling is not None:
            raise ConfigError(f"encoder.pooling: {directory} says itself how it pools, expected null")
        return SentenceEncoder(config, device, _SentenceTransformer(directory, config, device))
    return SentenceEncoder(config, device, _PlainEncoder(directory, config, device))
