"""Encoding a corpus in several processes: the vectors of one, whatever the encoder, and processes that fail."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dense_toy import passage_texts, save_encoder, write_corpus

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.dense import vectors as store
from finegrained_rlhf.retrieval.dense import workers
from finegrained_rlhf.retrieval.dense.config import EncoderConfig
from finegrained_rlhf.retrieval.dense.retriever import DenseConfig
from finegrained_rlhf.retrieval.dense.workers import EncoderProcesses, device_of_process
from finegrained_rlhf.retrieval.record import config_of

TEXTS = passage_texts(60)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder") / "bert")


def save_sentence_transformer(plain: Path, directory: Path) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    parts = [Transformer(str(plain)), Pooling(32, "mean"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(directory))
    return directory


@pytest.mark.parametrize(
    ("named", "gpus", "devices"),
    [
        (None, 0, ["cpu", "cpu", "cpu"]),
        (None, 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 4, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:1", 4, ["cuda:1"] * 3),
        ("cpu", 2, ["cpu"] * 3),
        ("cuda", 0, ["cuda"] * 3),  # which opening the encoder refuses
    ],
)
def test_devices_in_turn(named: str | None, gpus: int, devices: list[str]) -> None:
    config = EncoderConfig("x", device=named, processes=3)
    assert [device_of_process(config, number, gpus) for number in range(3)] == devices


def test_what_a_process_does_is_what_the_encoder_does(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_own", {})
    config, threads = EncoderConfig(str(plain), device="cpu", batch_size=8, processes=2), torch.get_num_threads()
    started = multiprocessing.get_context("spawn").Value("i", 0)
    try:
        workers._begin(config, started, 5)
        assert torch.get_num_threads() == 2 and started.value == 1
    finally:
        torch.set_num_threads(threads)
    parts = [(text,) for text in TEXTS]
    assert (workers._encode_piece(parts) == config.load().encode_parts(parts)).all()


def test_pieces_are_put_together_in_their_order(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PIECE", 2)
    corpus, seen = Corpus(write_corpus(tmp_path / "c.jsonl", TEXTS)), list[int]()
    encoder = EncoderConfig(str(plain), device="cpu", batch_size=4).load()

    def backwards(pieces: list[list[tuple[str, ...]]]) -> list[np.ndarray]:
        seen.extend(map(len, pieces))
        return [encoder.encode_parts(piece) for piece in reversed(pieces)][::-1]

    found = []
    for name, encode_pieces in (("one", None), ("pieces", backwards)):
        (tmp_path / name).mkdir()
        more = {"passages": 60, "shard_size": 25, "dtype": "float32", "progress": False}
        assert store.encode_corpus(corpus, encoder, tmp_path / name, encode_pieces=encode_pieces, **more) == 3
        found.append([path.read_bytes() for path in sorted((tmp_path / name).iterdir())])
    assert (
        found[0] == found[1]
        and max(seen) == 8
        and sum(seen) == sum(len(set(TEXTS[start : start + 25])) for start in range(0, 60, 25))
    )


def test_bad_numbers_of_processes() -> None:
    with pytest.raises(ConfigError, match="processes: expected at least 1"):
        EncoderConfig("x", processes=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["plain", "sentence_transformers", "towers"])
def test_two_processes_give_the_vectors_of_one(plain: Path, tmp_path: Path, kind: str) -> None:
    corpus = str(write_corpus(tmp_path / "corpus.jsonl", TEXTS * 2))
    if kind == "towers":
        encoder = EncoderConfig(query=str(plain), passage=str(plain), device="cpu", batch_size=1)
    else:
        path = plain if kind == "plain" else save_sentence_transformer(plain, tmp_path / "st")
        encoder = EncoderConfig(str(path), device="cpu", batch_size=1)
    one = DenseConfig(encoder, shard_size=70, progress=False)
    two = replace(one, encoder=replace(encoder, processes=2))
    one.build(corpus, tmp_path / "one")
    two.build(corpus, tmp_path / "two")
    for path in sorted((tmp_path / "one").glob("vectors-*")):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert config_of(tmp_path / "two") == two
    queries = ["old mill", "stone"]
    assert one.open(tmp_path / "two").search(queries, 5) == two.open(tmp_path / "one").search(queries, 5)


@pytest.mark.slow
def test_errors_of_processes_reach_the_user(plain: Path, tmp_path: Path) -> None:
    config = EncoderConfig(str(tmp_path / "absent"), device="cpu", processes=2)
    with EncoderProcesses(config) as processes, pytest.raises(ModelError, match="config.json"):
        list(processes.encode_pieces([[("a",)], [("b",)]]))
    with EncoderProcesses(replace(config, path=str(plain))) as processes:
        list(processes.encode_pieces([[("a",)], [("b",)]]))
        for process in list(processes._pool._processes.values()):
            os.kill(process.pid, 9)
        with pytest.raises(ModelError, match="a process that encodes has ended"):
            list(processes.encode_pieces([[("a",)]] * 4))
