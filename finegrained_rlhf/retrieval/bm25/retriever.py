"""BM25 over words, or over the tokens of a model's tokenizer: settings, and the index that searches and scores pools.

The index does not know what a term is: a function numbers those of queries.

BM25-light is BM25 over the sub-words of a policy's tokenizer, which a policy's training can use as its reward; the
index and all arithmetic are those of BM25 over words. Source: thesis, section 4.2.3: BM25 over T5's sub-words, without
stemming or stop words, queries cut at 128 and passages at 2,000 tokens; k1, b, document frequencies and the average
length as in BM25.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.hub import place_of_model
from finegrained_rlhf.core.markers import TokenizerName, at_least
from finegrained_rlhf.retrieval.arrays import StringTable, open_arrays
from finegrained_rlhf.retrieval.bm25.postings import (
    GrowingVocabulary,
    KnownVocabulary,
    TermWeights,
    Weighting,
    WordConfig,
    best_rows,
    pool_scores,
)
from finegrained_rlhf.retrieval.bm25.sharded import (
    BM25S,
    COUNTS,
    VOCABULARY,
    Bm25Constants,
    build_index,
    counts_of,
    shard_paths,
)
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.record import IndexRecord, open_record

_REMEMBERED = 200_000  # passages whose weights stay in memory between pools
QueryTerms = Callable[[Sequence[str]], list[list[int]]]
"""Numbers of the terms of each query; terms that no passage has may be left out."""


@dataclass(frozen=True)
class Bm25Config(Settings):
    """BM25 over words, scored as Lucene does (thesis, section 4.2.3: Pyserini with k1 0.82, b 0.68).

    Attributes:
        k1: saturation of the counts, at least 0.
        b: strength of the length normalisation, 0 to 1.
        stemmer: `none`, or a language or algorithm of PyStemmer (`english`, `porter`, …).
        stop_words: words that are left out: `none`, `english` (Lucene's 33) or a list.
        shard_size: passages a shard; changes memory while building (about 60 bytes a token of a shard), no score.
    """

    k1: float = 0.82
    b: float = 0.68
    stemmer: str = "porter"
    stop_words: str | Sequence[str] = "english"
    shard_size: int = 500_000

    def __post_init__(self) -> None:
        Bm25Constants(self.k1, self.b, self.shard_size)
        object.__setattr__(self, "stop_words", self.words.stop_words)

    @cached_property
    def words(self) -> WordConfig:
        """What becomes of a word."""
        return WordConfig(self.stemmer, self.stop_words)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that changes a score."""
        stop = self.stop_words if isinstance(self.stop_words, str) else list(self.stop_words)
        return {"k1": self.k1, "b": self.b, "stemmer": self.stemmer, "stop_words": stop}

    def build(self, corpus: str, directory: Path) -> None:
        """Index a corpus (see `RetrieverConfig`)."""
        constants = Bm25Constants(self.k1, self.b, self.shard_size)
        build_index(
            corpus,
            directory,
            lambda scan: IndexRecord("bm25", self.settings, scan, self.settings),
            GrowingVocabulary(self.words),
            constants,
        )

    def open(self, directory: Path) -> Bm25Index:
        """Open an index that was built with these settings (see `RetrieverConfig`)."""
        record = open_record(Path(directory), "bm25", self.settings)
        vocabulary = KnownVocabulary(self.words, StringTable(open_arrays(Path(directory) / VOCABULARY)))
        return Bm25Index(Path(directory), record, vocabulary.numbers)


class _Shard:
    """One shard, memory-mapped."""

    def __init__(self, path: Path) -> None:
        from bm25s import BM25

        arrays = open_arrays(path / COUNTS)
        self.counts = counts_of(arrays)
        self.ids = StringTable({name: arrays[f"ids.{name}"] for name in ("text", "starts", "hashes", "rows")})
        self._ranks, self._present = arrays["ranks"], arrays["present"]
        try:
            self._index = BM25.load(path / BM25S, mmap=True, load_vocab=False, show_progress=False)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"damaged ({error}); build the index again", file=path) from None

    def best(self, numbers: NDArray[np.int32], k: int) -> list[Hit]:
        """The k best passages for a query's terms."""
        if not len(self._present):
            return []
        columns = np.searchsorted(self._present, numbers)
        columns = columns[self._present[np.minimum(columns, len(self._present) - 1)] == numbers]
        if not len(columns):
            return []
        scores = self._index.get_scores_from_ids(columns)
        return [Hit(self.ids[row], float(scores[row])) for row in best_rows(scores, self._ranks, k).tolist()]


class Bm25Index:
    """A BM25 index on disk: a `Retriever`.

    Args:
        directory: of the index.
        record: of it; finished.
        query_terms: numbers the terms of queries as those of the passages were numbered.
    """

    def __init__(self, directory: Path, record: IndexRecord, query_terms: QueryTerms) -> None:
        self._directory, self._record, self._query_terms = directory, record, query_terms
        statistics = record.statistics
        self._weighting = Weighting(
            statistics["passages"],
            statistics["tokens"] / statistics["passages"],
            open_arrays(directory / VOCABULARY)["frequencies"],
            record.settings["k1"],
            record.settings["b"],
        )
        paths = shard_paths(directory)
        if len(paths) != statistics["shards"]:
            problem = f"has {len(paths)} shards, expected {statistics['shards']}; build the index again"
            raise DataError(problem, file=directory)
        self._shards = [_Shard(path) for path in paths]
        self._known: dict[str, TermWeights] = {}

    def __len__(self) -> int:
        return self._weighting.passages

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best passages for each query (see `Retriever`); passages without a word of it are not found.

        Raises:
            ConfigError: k is below 1.
        """
        if k < 1:
            raise ConfigError(f"k: expected at least 1, got {k}")
        results = []
        for numbers in self._query_terms(queries):
            terms, best = np.array(numbers, np.int32), list[Hit]()
            for shard in self._shards:
                best = sorted([*best, *shard.best(terms, k)], key=lambda hit: (hit.score, hit.id), reverse=True)[:k]
            results.append(best)
        return results

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> NDArray[np.float32]:
        """The score of every passage of a pool for every query (see `PoolScorer`), as `search` gives it: fp32 [Q, P].

        The work does not grow with the corpus: the terms of a passage are read from its shard, and kept.
        """
        pool = {id: i for i, id in enumerate(dict.fromkeys(ids))}
        query_rows = {query: i for i, query in enumerate(dict.fromkeys(queries))}
        self._remember(pool)
        scores = pool_scores(self._query_terms(list(query_rows)), [self._known[id] for id in pool])
        return scores[np.ix_([query_rows[query] for query in queries], [pool[id] for id in ids])]

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Ids that are not in the corpus (see `Retriever`)."""
        left = list(dict.fromkeys(ids))
        for shard in self._shards:
            left = [id for id, row in zip(left, shard.ids.find(left).tolist(), strict=True) if row < 0]
        return left

    def _remember(self, ids: Iterable[str]) -> None:
        """Read the weights of passages that are not known yet."""
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        left = [id for id in ids if id not in self._known]
        for shard in self._shards if left else ():
            for id, row in zip(left, shard.ids.find(left).tolist(), strict=True):
                if row >= 0:
                    self._known[id] = self._weights(shard, row)
            left = [id for id in left if id not in self._known]
        if left:
            raise DataError(f"no passage with the id {left[0]!r} ({len(left)} missing)", file=self._directory)

    def _weights(self, shard: _Shard, row: int) -> TermWeights:
        counts = shard.counts
        span = slice(int(counts.starts[row]), int(counts.starts[row + 1]))
        terms = np.array(counts.terms[span])
        lengths = np.broadcast_to(counts.lengths[row], terms.shape)
        return TermWeights(terms, self._weighting.weights(terms, counts.counts[span], lengths))


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
