"""Dense indexes by FAISS's factory strings: what they find, what is kept of them, and strings that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dense_toy import passage_texts, save_encoder, write_corpus

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.corpus import Place
from finegrained_rlhf.retrieval.dense.config import EncoderConfig
from finegrained_rlhf.retrieval.dense.nearest import (
    CompressedSearch,
    IvfPqConfig,
    build_compressed,
    build_ivf_pq,
    factory_file,
)
from finegrained_rlhf.retrieval.dense.retriever import DenseConfig
from finegrained_rlhf.retrieval.dense.vectors import VectorStore, save_shard
from finegrained_rlhf.retrieval.record import RecordedConfig, config_of

QUERIES = ["old mill near the river", "stone", "the bridge of iron is red"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[DenseConfig, str, Path]:
    """Settings of an exhaustive search, a corpus of 60 passages, and its index."""
    folder = tmp_path_factory.mktemp("factory")
    encoder = EncoderConfig(str(save_encoder(folder / "encoder")), batch_size=8, device="cpu")
    config = DenseConfig(encoder, shard_size=25, progress=False)
    corpus = str(write_corpus(folder / "corpus.jsonl", passage_texts(60)))
    config.build(corpus, folder / "index")
    return config, corpus, folder / "index"


@pytest.mark.parametrize("factory", ["IVF4,PQ8x4", "IVF4,Flat", "HNSW8", "SQ8", "PCA16,IVF2,SQ8"])
def test_every_candidate_re_ranked_is_exact(place: tuple[DenseConfig, str, Path], factory: str) -> None:
    flat, corpus, directory = place
    before = {path: path.stat().st_mtime_ns for path in directory.glob("vectors-*")}
    config = replace(flat, factory=factory, ivf_pq=IvfPqConfig(probes=4, refine=15))
    with pytest.raises(
        DataError, match=r"factory-.*\.faiss: no such index of the vectors; the same finegrained build-index"
    ):
        config.open(directory)
    config.build(corpus, directory)
    assert {path: path.stat().st_mtime_ns for path in directory.glob("vectors-*")} == before
    expected = flat.open(directory).search(QUERIES, 4)
    assert config.open(directory).search(QUERIES, 4) == expected
    assert config_of(directory) == config and RecordedConfig().open(directory).search(QUERIES, 4) == expected
    flat.build(corpus, directory)
    assert config_of(directory) == flat


def test_fewer_candidates_keep_exact_scores(place: tuple[DenseConfig, str, Path]) -> None:
    flat, corpus, directory = place
    config = replace(flat, factory="IVF6,PQ4x4", ivf_pq=IvfPqConfig(probes=1, refine=1))
    config.build(corpus, directory)
    scores = flat.open(directory).score_pool(QUERIES, [f"p{i:03d}" for i in range(60)])
    for hits, of_query in zip(config.open(directory).search(QUERIES, 4), scores, strict=True):
        assert 1 <= len(hits) <= 4
        assert [hit.score for hit in hits] == [of_query[int(hit.id[1:])] for hit in hits]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_records_of_before_the_string_was_there_still_open(place: tuple[DenseConfig, str, Path]) -> None:
    flat, corpus, directory = place
    flat.build(corpus, directory)
    path = directory / "index.json"
    row = json.loads(path.read_text())
    del row["config"]["factory"]
    path.write_text(json.dumps(row))
    assert config_of(directory) == flat
    assert RecordedConfig().open(directory).search(QUERIES, 4) == flat.open(directory).search(QUERIES, 4)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nonsense", r"factory: 'nonsense' makes no index of dimension 32 \(could not parse index string nonsense\)"),
        ("IVF4,PQ7", "factory: 'IVF4,PQ7' makes no index of dimension 32 .*multiple of the number of subquantizers"),
        ("LSH", "factory: 'LSH' makes no index of dimension 32"),
        ("IDMap,Flat", "renumbers the passages, expected it without IDMap"),
        ("IVF64,Flat", "factory: 'IVF64,Flat' needs at least 64 passages, the corpus has 60"),
    ],
)
def test_a_string_that_does_not_fit_is_refused_before_anything_is_encoded(
    place: tuple[DenseConfig, str, Path], tmp_path: Path, factory: str, message: str
) -> None:
    flat, corpus, _ = place
    with pytest.raises(ConfigError, match=message):
        replace(flat, factory=factory).build(corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_what_only_training_shows(place: tuple[DenseConfig, str, Path]) -> None:
    flat, corpus, directory = place
    with pytest.raises(ConfigError, match="factory: 'PQ8' does not fit 60 passages"):
        replace(flat, factory="PQ8").build(corpus, directory)
    assert not list(directory.glob("factory-PQ8-*"))


@pytest.mark.parametrize("more", [{"index": "ivf_pq"}, {"ivf_pq": IvfPqConfig(codes=8)}])
def test_the_string_stands_alone(more: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="factory: stands for index, ivf_pq.lists, .codes and .bits"):
        replace(DenseConfig(EncoderConfig("x")), factory="SQ8", **more)


def test_names_of_files_tell_strings_apart(tmp_path: Path) -> None:
    named = {factory_file(tmp_path, factory, 64).name for factory in ("IVF4,PQ8", "IVF4-PQ8", "IVF4(PQ8)", "IVF4,PQ8 ")}
    assert len(named) == 4 and all(name.startswith("factory-IVF4-PQ8") for name in named)
    assert factory_file(tmp_path, "SQ8", 64) != factory_file(tmp_path, "SQ8", 32)


def test_ivf_pq_is_one_of_the_strings(tmp_path: Path) -> None:
    """And without polysemous training (np) the hits are the same."""
    vectors = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    save_shard(tmp_path, 0, vectors, [str(i) for i in range(400)], Place())
    store, config = VectorStore(tmp_path, 1, 16), IvfPqConfig(lists=4, codes=4, bits=4)
    build_ivf_pq(store, config, tmp_path / "settings.faiss", progress=False)
    build_compressed(store, "IVF4,PQ4x4", config.train, tmp_path / "string.faiss", progress=False)
    found = [
        CompressedSearch(store, tmp_path / name, probes=2, refine=3).candidates(vectors[:50], 5)
        for name in ("settings.faiss", "string.faiss")
    ]
    assert found[0][1].shape == (50, 15) and (found[0][1] == found[1][1]).all() and (found[0][0] == found[1][0]).all()
