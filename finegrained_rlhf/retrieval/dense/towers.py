"""The two towers of dense passage retrieval as an encoder of a dense index.

A query is one text whose turns are joined by ` [SEP] `, a passage the pair of its title and its text; both are read as
in training (`models/encoders/towers.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage
from finegrained_rlhf.models.encoders.towers import TextTower, TwoTowers
from finegrained_rlhf.retrieval.bm25.light import tokenizer_fingerprint
from finegrained_rlhf.retrieval.dense.texts import TextKind, checked_vectors


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
