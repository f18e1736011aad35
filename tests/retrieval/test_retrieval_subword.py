"""BM25-light against BM25 on the same ids; and what a tokenizer changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bm25s import BM25
from retrieval_toy import random_passages, random_queries, write_corpus

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.models.tiny_networks import build_tokenizer
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config, Bm25LightConfig, SubWords, tokenizer_fingerprint
from finegrained_rlhf.retrieval.record import RecordedConfig

PASSAGES = random_passages(200)
QUERIES = random_queries(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and a byte-level tokenizer that cuts its words."""
    path = tmp_path_factory.mktemp("light")
    write_corpus(path / "corpus.jsonl", PASSAGES)
    tokenizer = build_tokenizer(list(PASSAGES.values()), kind="bpe", vocab_size=290)
    tokenizer.save_pretrained(path / "tokenizer")
    tokenizer.save_pretrained(path / "run/policy")
    return path


@pytest.fixture(scope="module")
def light(folder: Path) -> Bm25LightConfig:
    config = Bm25LightConfig(str(folder / "tokenizer"), shard_size=90)
    config.build(str(folder / "corpus.jsonl"), folder / "light")
    return config


def test_control_tokens_in_a_text_are_sub_words(light: Bm25LightConfig) -> None:
    tokenizer = light._load()
    before = tokenizer_fingerprint(tokenizer)
    terms = SubWords(tokenizer, 50)
    control, plain = terms.numbers([f"{PASSAGES['p1']} </s> <pad>", PASSAGES["p1"]])
    assert control[: len(plain)] == plain and len(control) > len(plain)
    assert not {tokenizer.eos_token_id, tokenizer.pad_token_id} & set(control)
    assert plain == tokenizer(PASSAGES["p1"], add_special_tokens=False)["input_ids"]
    assert tokenizer_fingerprint(tokenizer) == before


def test_it_equals_bm25_on_the_same_ids(folder: Path, light: Bm25LightConfig, tmp_path: Path) -> None:
    """Our BM25 over words that spell the ids, and bm25s on the ids themselves."""
    tokenizer = light._load()
    numbers = {id: tokenizer(text, add_special_tokens=False)["input_ids"] for id, text in PASSAGES.items()}
    asked = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in QUERIES]
    assert sum(map(len, asked)) > 1.5 * sum(len(query.split()) for query in QUERIES)  # it does cut words
    spelt = {id: " ".join(f"t{number}" for number in found) for id, found in numbers.items()}
    words = Bm25Config(stemmer="none", stop_words="none")
    words.build(str(write_corpus(tmp_path / "ids.jsonl", spelt)), tmp_path / "index")
    over_words = words.open(tmp_path / "index").score_pool(
        [" ".join(f"t{number}" for number in query) for query in asked], list(PASSAGES)
    )
    theirs = BM25(k1=0.82, b=0.68, method="lucene")
    theirs.index([list(map(str, found)) for found in numbers.values()], show_progress=False)
    known = {str(number) for found in numbers.values() for number in found}
    reference = [theirs.get_scores([str(n) for n in query if str(n) in known]) for query in asked]
    ours = light.open(folder / "light").score_pool(QUERIES, list(PASSAGES))
    assert ours == pytest.approx(over_words, abs=1e-5) and ours == pytest.approx(np.array(reference), abs=1e-5)
    assert ours.max() > 1


def test_search_and_pool_agree(folder: Path, light: Bm25LightConfig) -> None:
    index = light.open(folder / "light")
    pool = index.score_pool(QUERIES, list(PASSAGES))
    for hits, row in zip(index.search(QUERIES, 5), pool, strict=True):
        best = sorted(zip(row.tolist(), PASSAGES, strict=True), reverse=True)[:5]
        assert [(hit.score, hit.id) for hit in hits] == [pair for pair in best if pair[0] > 0]


def test_texts_are_cut_and_unknown_words_match_nothing(folder: Path) -> None:
    tokenizer = build_tokenizer(["one two three"])
    words = SubWords(tokenizer, 3)
    one, two, three = tokenizer.convert_tokens_to_ids(["▁one", "▁two", "▁three"])
    assert words.numbers(["one two three one", "three strange", ""]) == [[one, two, three], [three], []]
    assert words.numbers([]) == []
    config = Bm25LightConfig(str(folder / "tokenizer"))
    assert (config.query_length, config.passage_length) == (128, 2000)
    for name in ("query_length", "passage_length"):
        with pytest.raises(ConfigError, match=f"{name}: expected at least 1, got 0"):
            replace(config, **{name: 0})


def test_the_tokenizer_counts_not_where_it_lies(folder: Path, light: Bm25LightConfig, tmp_path: Path) -> None:
    """An index is opened with the same tokenizer from another place, and refused with another tokenizer."""
    moved = replace(light, tokenizer=str(folder / "run")).open(folder / "light")
    recorded = RecordedConfig().open(folder / "light")
    assert moved.search(QUERIES, 3) == recorded.search(QUERIES, 3) == light.open(folder / "light").search(QUERIES, 3)
    build_tokenizer(["one two"]).save_pretrained(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"built with other settings \(tokenizer '"):
        replace(light, tokenizer=str(tmp_path / "other")).open(folder / "light")
    with pytest.raises(ConfigError, match=r"passage_length 2000, here 100"):
        replace(light, passage_length=100).open(folder / "light")
    with pytest.raises(ConfigError, match="holds an index of kind bm25_light, expected bm25"):
        Bm25Config().open(folder / "light")
    with pytest.raises(ModelError, match="no tokenizer here"):
        replace(light, tokenizer=str(tmp_path)).open(folder / "light")


def test_the_fingerprint_of_a_tokenizer(folder: Path) -> None:
    """Truncation and padding of an earlier call are no part of it."""
    tokenizer = Bm25LightConfig(str(folder / "tokenizer"))._load()
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["a", "b c d"], truncation=True, max_length=2, padding=True)
    assert tokenizer_fingerprint(tokenizer) == before
    path = folder / "tokenizer/tokenizer.json"
    told = json.loads(path.read_text())
    assert "truncation" in told and "padding" in told
    assert tokenizer_fingerprint(build_tokenizer(["one two"])) != before
