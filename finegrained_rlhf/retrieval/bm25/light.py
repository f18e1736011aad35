"""BM25-light: BM25 over the sub-words of a policy's tokenizer, which a policy's training can use as its reward.

The index and all arithmetic are those of BM25 over words.

Source: thesis, section 4.2.3: BM25 over T5's sub-words, without stemming or stop words, queries cut at 128 and passages
at 2,000 tokens; k1, b, document frequencies and the average length as in BM25.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.hub import place_of_model
from finegrained_rlhf.core.markers import TokenizerName, at_least
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Index
from finegrained_rlhf.retrieval.bm25.sharded import Bm25Constants, build_index
from finegrained_rlhf.retrieval.record import IndexRecord, open_record


class SubWords:
    """Sub-word numbers of texts.

    Special tokens are not added, those written in a text are cut into sub-words, and unknown ones are left out: what a
    tokenizer does not know matches nothing.

    Args:
        tokenizer: a Hugging Face tokenizer.
        max_length: tokens of a text at most; the rest is cut off.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length

    def __len__(self) -> int:
        return len(self._tokenizer)

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the sub-words of each text."""
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            truncation=True,
            max_length=self._max_length,
            return_attention_mask=False,
            split_special_tokens=True,
        )["input_ids"]
        unknown = self._tokenizer.unk_token_id
        return [[number for number in numbers if number != unknown] for numbers in encoded]

    def take_new(self) -> list[str]:
        """Nothing: the vocabulary is fixed."""
        return []

    def restore(self, terms: Iterable[str]) -> None:
        """Nothing is restored: the vocabulary is fixed."""

    def vocabulary(self) -> list[str]:
        """Nothing: the tokenizer has it."""
        return []


@dataclass(frozen=True)
class Bm25LightConfig(Settings):
    """BM25 over sub-words.

    Attributes:
        tokenizer: directory of the tokenizer: a model directory, the run directory of a policy, or a Hub name.
        k1: saturation of the counts, at least 0.
        b: strength of the length normalisation, 0 to 1.
        query_length: sub-words of a query at most.
        passage_length: sub-words of a passage at most.
        shard_size: passages a shard; changes memory while building (about 60 bytes a token of a shard), no score.
    """

    tokenizer: TokenizerName
    k1: float = 0.82
    b: float = 0.68
    query_length: Annotated[int, at_least(1)] = 128
    passage_length: Annotated[int, at_least(1)] = 2000
    shard_size: int = 500_000

    def __post_init__(self) -> None:
        Bm25Constants(self.k1, self.b, self.shard_size)

    def build(self, corpus: str, directory: Path) -> None:
        """Index a corpus (see `RetrieverConfig`).

        Raises:
            ModelError: `tokenizer` holds none.
        """
        tokenizer = self._load()
        settings = self._settings(tokenizer)
        fields = ("k1", "b", "query_length", "passage_length")
        config = {"tokenizer": self.tokenizer, **{name: getattr(self, name) for name in fields}}
        build_index(
            corpus,
            directory,
            lambda scan: IndexRecord("bm25_light", settings, scan, config),
            SubWords(tokenizer, self.passage_length),
            Bm25Constants(self.k1, self.b, self.shard_size),
        )

    def open(self, directory: Path) -> Bm25Index:
        """Open an index that was built with these settings (see `RetrieverConfig`).

        Raises:
            ModelError: `tokenizer` holds none.
        """
        tokenizer = self._load()
        record = open_record(Path(directory), "bm25_light", self._settings(tokenizer))
        return Bm25Index(Path(directory), record, SubWords(tokenizer, self.query_length).numbers)

    def _load(self) -> Any:
        from finegrained_rlhf.models.loading import load_tokenizer

        place = place_of_model(self.tokenizer)
        exported = place / "policy"
        return load_tokenizer(exported if exported.is_dir() else place)

    def _settings(self, tokenizer: Any) -> dict[str, Any]:
        """Everything that changes a score; the tokenizer by what it does, not by where it lies."""
        return {
            "k1": self.k1,
            "b": self.b,
            "query_length": self.query_length,
            "passage_length": self.passage_length,
            "tokenizer": tokenizer_fingerprint(tokenizer),
        }


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """The same for tokenizers that cut texts alike, wherever they were loaded from."""
    if getattr(tokenizer, "is_fast", False):
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        description.pop("truncation", None)  # set anew by each call
        description.pop("padding", None)
    else:
        description = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=8).hexdigest()
