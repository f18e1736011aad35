"""Dense retrieval against transformers and sentence-transformers used directly, and against exhaustive search."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_toy import passage_texts, save_encoder, write_corpus
from transformers import AutoModel, AutoTokenizer

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.retrieval.corpus import Place
from finegrained_rlhf.retrieval.dense.config import EncoderConfig, pooled
from finegrained_rlhf.retrieval.dense.encoder import SentenceEncoder
from finegrained_rlhf.retrieval.dense.nearest import CompressedSearch, IvfPqConfig, build_ivf_pq, enough_probes
from finegrained_rlhf.retrieval.dense.retriever import DenseConfig, DenseRetriever, dot_products
from finegrained_rlhf.retrieval.dense.vectors import VectorStore, save_shard
from finegrained_rlhf.retrieval.record import RecordedConfig, config_of

TEXTS = passage_texts(60)
IDS = [f"p{i:03d}" for i in range(60)]
QUERIES = ["old mill near the river", "stone", "the bridge of iron is red", "old mill near the river"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder") / "bert")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", TEXTS))


def settings(path: Path, **more: object) -> DenseConfig:
    encoder = EncoderConfig(str(path), batch_size=8, device="cpu")
    return replace(DenseConfig(encoder, shard_size=25, progress=False), **more)


@pytest.fixture(scope="module")
def built(plain: Path, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dense") / "index"
    settings(plain).build(corpus, directory)
    return directory


def reference(path: Path, texts: list[str], pooling: str = "mean") -> np.ndarray:
    """Vectors of length 1, each text by itself, in plain transformers."""
    model, tokenizer = AutoModel.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    rows = []
    for text in texts:
        with torch.no_grad():
            hidden = model(**tokenizer(text, truncation=True, return_tensors="pt")).last_hidden_state[0].double()
        vector = hidden.mean(0) if pooling == "mean" else hidden[0]
        rows.append((vector / vector.norm()).numpy())
    return np.stack(rows)


def test_pooling_by_hand() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]], [[5.0, 6.0], [9.0, 9.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert pooled(hidden, mask, "mean").tolist() == [[2.0, 3.0], [5.0, 6.0]]
    assert pooled(hidden, mask, "cls").tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert pooled(hidden, torch.zeros(2, 3), "mean").tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_equal_transformers(plain: Path, pooling: str) -> None:
    encoder = replace(settings(plain).encoder, pooling=pooling).load()
    assert np.abs(encoder.encode(TEXTS, "passage") - reference(plain, TEXTS, pooling)).max() < 1e-6


def test_long_texts_are_cut_and_prefixes_stand_before(plain: Path) -> None:
    config = replace(settings(plain).encoder, max_length=6, query_prefix="query : ")
    encoder = config.load()
    long, short = encoder.encode(["red " * 50, "red red red red red red"], "passage")
    assert np.abs(long - short).max() < 1e-6
    prefixed = encoder.encode(["mill"], "query")
    assert np.abs(prefixed - encoder.encode(["query : mill"], "passage")).max() < 1e-6
    assert np.abs(prefixed - encoder.encode(["mill"], "passage")).max() > 1e-3


def test_control_tokens_in_a_text_are_words(plain: Path) -> None:
    """`[SEP]` in a passage ends nothing; other texts have the vectors they had."""
    encoder = settings(plain).encoder.load()
    ids: list[list[int]] = []
    backend: Any = encoder._backend
    model = backend._model
    model.register_forward_pre_hook(lambda _, given: ids.extend(given[0].tolist()) or None)
    texts = ["a red [SEP] mill", "a [MASK] mill", "a red mill"]
    vectors = encoder.encode(texts, "passage")
    special = {backend.tokenizer.sep_token_id, backend.tokenizer.mask_token_id}
    assert len(ids) == 3 and all(sum(token in special for token in row) == 1 for row in ids)  # the end alone
    assert np.abs(vectors[2:] - reference(plain, texts[2:])).max() < 1e-6


def test_dot_similarity_keeps_lengths(plain: Path) -> None:
    vectors = replace(settings(plain).encoder, similarity="dot").load().encode(TEXTS[:3], "query")
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 0.01


def test_bf16_is_close(plain: Path) -> None:
    rounded = replace(settings(plain).encoder, precision="bf16").load().encode(TEXTS, "passage")
    assert rounded.dtype == np.float32
    assert 1e-6 < np.abs(rounded - reference(plain, TEXTS)).max() < 0.05


def save_sentence_transformer(plain: Path, directory: Path, **more: object) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        parts = [Transformer(str(plain)), Pooling(32, "mean"), Dense(32, 16, bias=False), Normalize()]
    SentenceTransformer(modules=parts, device="cpu", **more).save(str(directory))
    return directory


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_sentence_transformers_directories(plain: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    directory = save_sentence_transformer(plain, tmp_path / "st", prompts={"query": "query : ", "document": ""})
    encoder = EncoderConfig(str(directory), device="cpu").load()
    theirs = SentenceTransformer(str(directory), device="cpu")
    assert encoder.dimension == 16
    assert np.abs(encoder.encode(TEXTS, "passage") - theirs.encode(TEXTS)).max() < 1e-6
    assert np.abs(encoder.encode(QUERIES, "query") - theirs.encode(QUERIES, prompt="query : ")).max() < 1e-6
    with pytest.raises(ConfigError, match="says itself how it pools"):
        EncoderConfig(str(directory), pooling="cls").load()
    (weights,) = (directory / "2_Dense").glob("*.safetensors")
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(ModelError, match="pickled weights"):
        EncoderConfig(str(directory), device="cpu").load()


def test_scores_equal_cosines(plain: Path, built: Path) -> None:
    scores = settings(plain).open(built).score_pool(QUERIES, IDS)
    assert scores.dtype == np.float32 and scores.shape == (4, 60)
    assert np.abs(scores - reference(plain, QUERIES) @ reference(plain, TEXTS).T).max() < 1e-5
    assert (scores[0] == scores[3]).all()


def test_order_and_repeats_change_no_score(plain: Path, built: Path) -> None:
    retriever = settings(plain).open(built)
    whole = retriever.score_pool(QUERIES, IDS)
    rng = np.random.default_rng(0)
    for size in (1, 7, 100):
        places = rng.integers(0, 60, size)
        assert (retriever.score_pool(QUERIES, [IDS[i] for i in places]) == whole[:, places]).all()
    first = [TEXTS.index(text) for text in TEXTS]
    assert np.abs(whole - whole[:, first]).max() < 1e-6  # equal texts, whatever batch their vectors come from
    together = [place for place, twin in enumerate(first) if place // 25 == twin // 25]  # in one shard
    assert len(together) > len({TEXTS[place] for place in together})
    assert (whole[:, together] == whole[:, [first[place] for place in together]]).all()  # they tie exactly


def test_no_query_and_no_passage(plain: Path, built: Path) -> None:
    retriever = settings(plain).open(built)
    assert retriever.score_pool([], IDS).shape == (0, 60)
    assert retriever.score_pool(QUERIES, []).shape == (4, 0)
    assert retriever.search([], 3) == []


@pytest.mark.parametrize("k", [1, 3, 10, 60, 100])
def test_search_equals_sorting_all_scores(plain: Path, built: Path, k: int) -> None:
    retriever = settings(plain).open(built)
    scores = retriever.score_pool(QUERIES, IDS)
    for query, hits in enumerate(retriever.search(QUERIES, k)):
        best = sorted(zip(scores[query].tolist(), IDS, strict=True), reverse=True)[:k]
        assert [(hit.score, hit.id) for hit in hits] == best


def test_ties_beyond_the_first_candidates(plain: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["red mill"] * 50 + ["stone tower"])
    settings(plain).build(str(corpus), tmp_path / "index")
    (hits,) = settings(plain).open(tmp_path / "index").search(["red mill"], 3)
    assert [hit.id for hit in hits] == ["p049", "p048", "p047"]


def test_ivf_pq_with_every_list_is_exact(plain: Path, corpus: str, built: Path, tmp_path: Path) -> None:
    built = Path(shutil.copytree(built, tmp_path / "index"))
    pq = IvfPqConfig(lists=4, probes=4, codes=8, bits=4, refine=15)
    config = settings(plain, index="ivf_pq", ivf_pq=pq)
    with pytest.raises(DataError, match="no such index of the vectors"):
        config.open(built)
    before = {path: path.stat().st_mtime_ns for path in built.glob("vectors-*")}
    config.build(corpus, built)
    assert {path: path.stat().st_mtime_ns for path in built.glob("vectors-*")} == before
    exact = settings(plain).open(built)
    assert config.open(built).search(QUERIES, 4) == exact.search(QUERIES, 4)
    assert config_of(built) == config
    rough = replace(config, ivf_pq=replace(pq, probes=1, refine=1)).open(built)
    for hits, scores in zip(rough.search(QUERIES, 4), exact.score_pool(QUERIES, IDS), strict=True):
        assert 1 <= len(hits) <= 4
        assert [hit.score for hit in hits] == [scores[IDS.index(hit.id)] for hit in hits]


def test_probes_are_doubled_until_they_find_enough(tmp_path: Path) -> None:
    """Shares by numpy's own products: the chosen number meets the goal, half of it does not."""
    vectors = np.random.default_rng(0).normal(size=(800, 16)).astype(np.float32)
    save_shard(tmp_path, 0, vectors, [str(i) for i in range(800)], Place())
    store, pq = VectorStore(tmp_path, 1, 16), IvfPqConfig(lists=16, codes=8, bits=4, refine=20, goal=0.8)
    path = tmp_path / "index.faiss"
    build_ivf_pq(store, pq, path, False)
    queries = vectors[:50] + 0.5
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]

    def share(probes: int) -> float:
        found = CompressedSearch(store, path, probes, pq.refine).candidates(queries, 10)[1]
        return sum(len(set(a) & set(b)) for a, b in zip(best.tolist(), found.tolist(), strict=True)) / 500

    probes, found = enough_probes(store, path, pq, queries, k=10)
    assert probes in (2, 4, 8) and found == pytest.approx(share(probes)) and share(probes // 2) < 0.8 <= found
    assert enough_probes(store, path, replace(pq, goal=1.0, refine=1), queries, k=10)[0] == 16  # codes lose the rest


def test_a_build_with_a_goal_remembers_its_probes(plain: Path, corpus: str, built: Path, tmp_path: Path) -> None:
    built = Path(shutil.copytree(built, tmp_path / "index"))
    for goal, probes in ((0.95, 4), (0.01, 1)):  # of 60 passages, all of them are the best 100
        pq = IvfPqConfig(lists=4, probes=2, codes=8, bits=4, refine=15, goal=goal)
        config = settings(plain, index="ivf_pq", ivf_pq=pq)
        config.build(corpus, built)
        assert config_of(built).ivf_pq == replace(pq, probes=probes)
        assert config.open(built)._search._index.nprobe == probes  # who names the goal takes them too


def test_ivf_pq_that_does_not_fit(plain: Path, corpus: str, built: Path) -> None:
    for pq, message in (
        (IvfPqConfig(codes=5), "ivf_pq.codes: the dimension 32 is no multiple of 5"),
        (IvfPqConfig(codes=8), "needs at least 256 passages, the corpus has 60"),
    ):
        with pytest.raises(ConfigError, match=message):
            settings(plain, index="ivf_pq", ivf_pq=pq).build(corpus, built)


@pytest.mark.parametrize(("passages", "lists"), [(1, 1), (60, 1), (10_000, 256), (54_000_000, 32768)])
def test_number_of_lists(passages: int, lists: int) -> None:
    assert IvfPqConfig().lists_of(passages) == lists


class Killed(Exception):
    """Stands for whatever stops a build."""


def test_a_killed_build_goes_on(
    plain: Path, corpus: str, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    plainly = SentenceEncoder.encode

    def encode(self: SentenceEncoder, texts: list[str], kind: str) -> np.ndarray:
        if len(encoded) == len(set(TEXTS[:25])):  # after the first shard, in which equal texts are encoded once
            encoded.append("killed")
            raise Killed
        encoded.extend(texts)
        return plainly(self, texts, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(SentenceEncoder, "encode", encode)
    with pytest.raises(Killed):
        settings(plain).build(corpus, tmp_path / "index")
    with pytest.raises(DataError, match="not finished"):
        settings(plain).open(tmp_path / "index")
    settings(plain).build(corpus, tmp_path / "index")
    encoded.remove("killed")
    shards = [TEXTS[start : start + 25] for start in range(0, len(TEXTS), 25)]
    assert sorted(encoded) == sorted(text for shard in shards for text in set(shard))
    settings(plain).build(corpus, tmp_path / "index")
    assert len(encoded) == sum(len(set(shard)) for shard in shards)
    for path in built.glob("vectors-*"):
        assert path.read_bytes() == (tmp_path / "index" / path.name).read_bytes()


def test_half_precision_on_disk(plain: Path, corpus: str, built: Path, tmp_path: Path) -> None:
    config = settings(plain, storage="float16")
    config.build(corpus, tmp_path / "half")
    half, whole = config.open(tmp_path / "half"), settings(plain).open(built)
    assert 0 < np.abs(half.score_pool(QUERIES, IDS) - whole.score_pool(QUERIES, IDS)).max() < 1e-3
    sizes = [
        sum(path.stat().st_size for path in directory.glob("vectors-*")) for directory in (tmp_path / "half", built)
    ]
    assert abs(sizes[1] - sizes[0] - 60 * 32 * 2) < 64  # headers differ a little


def test_an_index_is_opened_by_its_record(plain: Path, built: Path) -> None:
    retriever = RecordedConfig().open(built)
    assert isinstance(retriever, DenseRetriever)
    assert retriever.search(QUERIES, 5) == settings(plain).open(built).search(QUERIES, 5)


def test_indexes_of_other_encoders_and_settings(plain: Path, built: Path, corpus: str, tmp_path: Path) -> None:
    other, narrow = save_encoder(tmp_path / "other", seed=1), save_encoder(tmp_path / "narrow", d_model=16)
    cls = settings(plain, encoder=replace(settings(plain).encoder, pooling="cls"))
    for config, message in (
        (settings(other), "weights"),
        (settings(narrow), "dimension 32, here 16"),
        (cls, "pooling 'mean', here 'cls'"),
        (settings(plain, storage="float16"), "storage 'float32', here 'float16'"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.open(built)
        with pytest.raises(ConfigError, match=message):
            config.build(corpus, built)
    with pytest.raises(ConfigError, match="another corpus"):
        settings(plain).build(str(write_corpus(tmp_path / "corpus.jsonl", TEXTS[:5])), built)
    with pytest.raises(DataError, match="no index here"):
        settings(plain).open(tmp_path / "nothing")


def test_bad_input(plain: Path, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no passage"):
        settings(plain).build(str(tmp_path / "empty.jsonl"), tmp_path / "index")
    retriever = settings(plain).open(built)
    assert retriever.missing([IDS[0], "p999", IDS[1]]) == ["p999"]
    with pytest.raises(DataError, match="no passage with the id 'p999'"):
        retriever.score_pool(QUERIES, ["p001", "p999"])
    with pytest.raises(ConfigError, match="k: expected at least 1"):
        retriever.search(QUERIES, 0)
    with pytest.raises(ModelError, match="config.json"):
        settings(tmp_path / "absent").open(built)
    with pytest.raises(ConfigError, match="pooling"):
        EncoderConfig("x", pooling="max")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match="pip install"):
        settings(plain).open(built)


def test_damaged_shards(plain: Path, corpus: str, tmp_path: Path) -> None:
    settings(plain).build(corpus, tmp_path / "index")
    shard = tmp_path / "index" / "vectors-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(DataError, match="vectors-00001.*damaged"):
        settings(plain).open(tmp_path / "index")
    shard.unlink()
    with pytest.raises(DataError, match="vectors-00001.*no such file"):
        settings(plain).open(tmp_path / "index")


def test_products_do_not_depend_on_their_neighbours() -> None:
    rng = np.random.default_rng(1)
    queries, passages = (rng.normal(size=(n, 33)).astype(np.float32) for n in (20, 30))
    whole = dot_products(queries, passages)
    assert np.abs(whole - queries.astype(float) @ passages.astype(float).T).max() < 1e-4
    for _ in range(50):
        q, p = rng.permutation(20)[: rng.integers(1, 20)], rng.permutation(30)[: rng.integers(1, 30)]
        assert (dot_products(queries[q], passages[p]) == whole[np.ix_(q, p)]).all()
