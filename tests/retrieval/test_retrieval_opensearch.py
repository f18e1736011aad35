"""The client of search servers against a server in a thread that is busy, slow, broken or gone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import needs_openssl, self_signed
from dense_toy import passage_texts, write_corpus
from search_server_toy import Answer, FakeServer, Fault, busy, says, slow

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.engines.opensearch import OpenSearchConfig, OpenSearchRetriever
from finegrained_rlhf.retrieval.engines.search_server import SearchServer, SearchServerConfig, SearchServerError
from finegrained_rlhf.retrieval.record import RecordedConfig

TEXTS = passage_texts(30)
IDS = [f"p{i:03d}" for i in range(30)]
QUERIES = ["old mill near the river", "stone", "zebra", "iron iron bridge", "stone"]


@pytest.fixture(params=["opensearch", "elasticsearch"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    server = FakeServer(request.param)
    yield server
    server.close()


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return str(write_corpus(tmp_path / "corpus.jsonl", TEXTS))


def settings(fake: FakeServer, **more: Any) -> OpenSearchConfig:
    server = SearchServerConfig(fake.url, fake.product, timeout_s=5.0, retries=3, backoff_s=0.01, longest_wait_s=0.05)
    return replace(OpenSearchConfig("toy", server, bulk=8, queries_per_request=2, progress=False), **more)


@pytest.fixture
def retriever(fake: FakeServer, corpus: str, tmp_path: Path) -> OpenSearchRetriever:
    settings(fake).build(corpus, tmp_path / "index")
    return settings(fake).open(tmp_path / "index")


def contents(fake: FakeServer) -> list[str]:
    return [fake.indexes["toy"]["documents"][id]["contents"] for id in IDS]


def test_what_the_server_is_told(fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    settings(fake, k1=0.9, b=0.4, analyzer="standard", shards=3, replicas=1).build(corpus, tmp_path / "index")
    found = fake.indexes["toy"]
    index = found["settings"]["index"]
    assert index["similarity"] == {"passages": {"type": "BM25", "k1": 0.9, "b": 0.4}}
    assert (index["number_of_shards"], index["number_of_replicas"], index["refresh_interval"]) == (3, 1, None)
    text = {"type": "text", "analyzer": "standard", "similarity": "passages"}
    assert found["mappings"]["properties"] == {"id": {"type": "keyword"}, "contents": text}
    assert contents(fake) == TEXTS and len(found["documents"]) == 30
    assert fake.paths("_bulk") == 4


def test_search(fake: FakeServer, retriever: OpenSearchRetriever) -> None:
    for query, hits in zip(QUERIES, retriever.search(QUERIES, 5), strict=True):
        scores = [FakeServer.bm25(fake.indexes["toy"], query, text) for text in TEXTS]
        best = sorted(((np.float32(s), id) for s, id in zip(scores, IDS, strict=True) if s > 0), reverse=True)[:5]
        assert [(np.float32(hit.score), hit.id) for hit in hits] == best
    assert retriever.search(["zebra"], 5) == [[]]
    assert fake.paths("_msearch") == 2 + 1  # four different queries, two a request


def test_scores_of_a_pool(fake: FakeServer, retriever: OpenSearchRetriever) -> None:
    scores = retriever.score_pool(QUERIES, IDS)
    assert scores.dtype == np.float32
    expected = [[FakeServer.bm25(fake.indexes["toy"], query, text) for text in TEXTS] for query in QUERIES]
    assert np.abs(scores - np.array(expected)).max() < 1e-6
    places = np.random.default_rng(0).integers(0, 30, 50)
    assert (retriever.score_pool(QUERIES, [IDS[i] for i in places]) == scores[:, places]).all()
    assert retriever.score_pool([], IDS).shape == (0, 30) and retriever.score_pool(QUERIES, []).shape == (5, 0)
    for hits, row in zip(retriever.search(QUERIES, 5), scores, strict=True):
        assert [hit.score for hit in hits] == [row[IDS.index(hit.id)] for hit in hits]


def test_unknown_ids_and_depths(retriever: OpenSearchRetriever) -> None:
    assert retriever.missing([IDS[0], "p999", IDS[1]]) == ["p999"]
    with pytest.raises(DataError, match="no passage with the id 'p999' \\(1 missing\\)"):
        retriever.score_pool(QUERIES, ["p001", "p999"])
    for k in (0, 10_001):
        with pytest.raises(ConfigError, match="k: expected 1 to 10000"):
            retriever.search(QUERIES, k)


def test_pools_of_many_passages(retriever: OpenSearchRetriever, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = retriever.score_pool(QUERIES, IDS)
    monkeypatch.setattr("finegrained_rlhf.retrieval.engines.opensearch._MOST_IDS", 7)
    assert (retriever.score_pool(QUERIES, IDS) == whole).all()


def test_long_ids(fake: FakeServer, tmp_path: Path) -> None:
    ids = ["x" * 600 + str(i) for i in range(3)]
    rows = [{"id": id, "text": "stone mill"} for id in ids]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings(fake).build(str(tmp_path / "long.jsonl"), tmp_path / "index")
    (hits,) = settings(fake).open(tmp_path / "index").search(["stone"], 3)
    assert [hit.id for hit in hits] == ids[::-1]


@pytest.mark.parametrize(
    "fault",
    [
        busy(429, **{"Retry-After": "0"}),
        busy(429, **{"Retry-After": "3600"}),
        busy(503),
        says(b"<html>a proxy</html>"),
        says(b"[1]"),
        says(b'{"took": 1'),
        lambda answer: b"",
        lambda answer: b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        lambda answer: b"nonsense\r\n\r\n",
    ],
    ids=["429", "429 for an hour", "503", "html", "list", "cut JSON", "hung up", "cut answer", "no HTTP"],
)
def test_every_request_is_tried_again(fault: Fault, fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    ends = ["toy", "_mapping", "_bulk", "_bulk", "_settings", "_refresh", "_count", "_msearch"]
    fake.faults = [(end, fault) for end in ends]
    settings(fake).build(corpus, tmp_path / "index")
    found = settings(fake).open(tmp_path / "index").search(QUERIES[:1], 3)
    assert not fake.faults and contents(fake) == TEXTS
    assert found == settings(fake).open(tmp_path / "index").search(QUERIES[:1], 3)


def test_slow_answers(fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    impatient = settings(fake)
    impatient = replace(impatient, server=replace(impatient.server, timeout_s=0.2))
    fake.faults = [("_bulk", slow(0.6)), ("_msearch", slow(0.6))]
    impatient.build(corpus, tmp_path / "index")
    assert len(impatient.open(tmp_path / "index").search(["stone"], 3)[0]) == 3
    assert fake.paths("_bulk") == 5 and contents(fake) == TEXTS
    fake.faults = [("_msearch", slow(0.6))] * 4
    with pytest.raises(SearchServerError, match="_msearch: given up after 4 tries.*no answer in time"):
        impatient.open(tmp_path / "index").search(["stone"], 3)


def test_a_server_is_left_alone_for_as_long_as_it_asks(fake: FakeServer, retriever: OpenSearchRetriever) -> None:
    config = settings(fake)
    server = SearchServer(replace(config.server, longest_wait_s=0.4))
    fake.faults = [("_count", busy(429, **{"Retry-After": "7"})), ("_count", busy(503))]
    started = time.monotonic()
    assert server.ask("POST", "toy/_count") == {"count": 30}
    assert 0.4 <= time.monotonic() - started < 1.0  # up to the longest wait, and not again after an answer without it


def test_half_a_surrogate_pair_is_sent_as_a_question_mark(fake: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "stone \\ud800 mill"}\n')
    settings(fake).build(str(tmp_path / "corpus.jsonl"), tmp_path / "index")
    assert fake.indexes["toy"]["documents"] == {"a": {"id": "a", "contents": "stone ? mill"}}
    retriever = settings(fake).open(tmp_path / "index")
    (hits,) = retriever.search(["stone \ud800"], 1)
    assert [hit.id for hit in hits] == ["a"] and retriever.missing(["\ud800", "a"]) == ["\ud800"]


@needs_openssl
def test_certificates(fake: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = self_signed(tmp_path)
    fake.use_tls(certificate, key)
    fake.indexes["toy"] = {"seen": {}}

    def count(**options: Any) -> dict[str, Any]:
        config = replace(settings(fake).server, **options)
        return SearchServer(config).ask("POST", "toy/_count")

    assert count(ca_file=str(certificate)) == {"count": 0}
    assert count(verify=False) == {"count": 0} and "its certificate is not verified" in caplog.text
    with pytest.raises(
        ConfigError, match="certificate is not trusted \\(self-signed certificate\\); give server.ca_file"
    ):
        count()
    with pytest.raises(SearchServerError, match="given up after 4 tries"):
        count(url=fake.url.replace("https:", "http:"))


def test_a_request_holds_no_more_than_servers_take(
    fake: FakeServer, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finegrained_rlhf.retrieval.engines.opensearch_index._LARGEST", 1)
    settings(fake).build(corpus, tmp_path / "index")
    assert fake.paths("_bulk") == 30 and contents(fake) == TEXTS


def test_an_answer_about_other_passages_is_none(fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    fake.faults = [("_bulk", says(json.dumps({"items": items}).encode())) for items in ([], [1] * 8, [{}] * 8, None)]
    with pytest.raises(SearchServerError, match="8 of 8 passages were not taken .an answer without an item for each"):
        settings(fake).build(corpus, tmp_path / "index")
    fake.faults = [("_mapping", lambda answer: (302, {}, {"Location": fake.url}))]
    with pytest.raises(SearchServerError, match="status 302"):
        settings(fake).build(corpus, tmp_path / "index")


def test_a_server_of_the_other_kind(corpus: str, tmp_path: Path) -> None:
    fake = FakeServer("opensearch")
    config = settings(fake)
    fake.indexes["toy"] = {"mappings": {}}
    with pytest.raises(ConfigError, match="server.client: this server is no Elasticsearch; expected opensearch"):
        replace(config, server=replace(config.server, client="elasticsearch")).build(corpus, tmp_path / "index")
    fake.close()


def not_taken(status: int, places: set[int]) -> tuple[str, Fault]:
    def fault(answer: Answer) -> Answer:
        error = {"type": "es_rejected_execution_exception", "reason": "queue full"}
        items = [
            {"index": {"status": status, "error": error}} if i in places else item
            for i, item in enumerate(answer[1]["items"])
        ]
        return 200, {"errors": True, "items": items}, {}

    return "_bulk", fault


def test_passages_that_were_not_taken_are_sent_again(
    fake: FakeServer, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    ask = SearchServer.ask

    def count(self: SearchServer, method: str, what: str, body: Any = None) -> Any:
        if what.endswith("_bulk"):
            sent.append(len(body) // 2)
        return ask(self, method, what, body)

    monkeypatch.setattr(SearchServer, "ask", count)
    fake.faults = [not_taken(429, {1, 2, 5}), not_taken(503, {0})]
    settings(fake).build(corpus, tmp_path / "index")
    assert sent == [8, 3, 1, 8, 8, 6]


def test_a_refused_passage(fake: FakeServer, tmp_path: Path) -> None:
    corpus = str(write_corpus(tmp_path / "corpus.jsonl", ["fine", "a forbidden word", "fine"]))
    with pytest.raises(DataError, match="record p001: .*refuses it: mapper_parsing_exception: forbidden word"):
        settings(fake).build(corpus, tmp_path / "index")


def failed_searches(places: dict[int, Any]) -> tuple[str, Fault]:
    def fault(answer: Answer) -> Answer:
        responses = [{**good, **places.get(i, {})} for i, good in enumerate(answer[1]["responses"])]
        return 200, {"responses": responses}, {}

    return "_msearch", fault


def test_searches_that_failed_are_sent_again(fake: FakeServer, retriever: OpenSearchRetriever) -> None:
    expected = retriever.search(QUERIES, 3)
    full = {"status": 429, "error": {"type": "rejected", "reason": "queue full"}}
    for broken in (
        {1: full},
        {0: {"timed_out": True}},
        {1: {"_shards": {"failed": 1}}},
        {0: {"hits": {}}},
        {0: full, 1: {"hits": {"hits": [{"_score": None, "fields": {"id": ["p001"]}}]}}},
    ):
        fake.faults = [failed_searches(broken), ("", says(b'{"responses": []}'))]
        assert retriever.search(QUERIES, 3) == expected
        assert not fake.faults
    fake.faults = [failed_searches({0: {"status": 400, "error": {"type": "too_many_clauses", "reason": "1024"}}})]
    with pytest.raises(SearchServerError, match="too_many_clauses: 1024"):
        retriever.search(QUERIES, 3)
    fake.faults = [failed_searches({0: {"timed_out": True}})] * 9
    with pytest.raises(SearchServerError, match="1 of 1 searches failed \\(an incomplete answer\\)"):
        retriever.search(["stone"], 3)


def test_an_unreachable_server(fake: FakeServer, corpus: str, tmp_path: Path, retriever: OpenSearchRetriever) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
    config = settings(fake)
    config = replace(config, server=replace(config.server, url=gone))
    started = time.monotonic()
    with pytest.raises(SearchServerError, match="given up after 4 tries.*refused"):
        config.open(tmp_path / "index")
    with pytest.raises(SearchServerError, match="given up after 4 tries"):
        config.build(corpus, tmp_path / "elsewhere")
    assert time.monotonic() - started < 5
    fake.faults = [("", says(b"<html>who?</html>"))] * 4
    with pytest.raises(SearchServerError, match="an answer that is no JSON: <html>who"):
        retriever.search(["stone"], 3)


def test_a_build_that_broke_off_goes_on(fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    fake.faults = [("_bulk", lambda answer: answer)] * 2 + [("_bulk", busy(503))] * 4
    with pytest.raises(SearchServerError, match="status 503"):
        settings(fake).build(corpus, tmp_path / "index")
    with pytest.raises(DataError, match="not finished"):
        settings(fake).open(tmp_path / "index")
    before = fake.paths("_bulk")
    settings(fake).build(corpus, tmp_path / "index")
    assert fake.paths("_bulk") - before == 2 and contents(fake) == TEXTS
    settings(fake).build(corpus, tmp_path / "index")
    assert fake.paths("_bulk") - before == 2
    assert not (tmp_path / "index" / "progress.json").exists()


def test_an_index_that_the_server_lost(fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    settings(fake).build(corpus, tmp_path / "index")
    fake.indexes["toy"]["seen"].popitem()
    with pytest.raises(DataError, match="the server has 29 of 30 passages"):
        settings(fake).open(tmp_path / "index")
    settings(fake).build(corpus, tmp_path / "index")
    assert settings(fake).open(tmp_path / "index").search(["stone"], 1)[0]
    fake.indexes.clear()
    with pytest.raises(DataError, match="has no index toy"):
        settings(fake).open(tmp_path / "index")
    settings(fake).build(corpus, tmp_path / "index")
    assert contents(fake) == TEXTS


def test_documents_that_do_not_arrive(fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    def forget(answer: Answer) -> Answer:
        fake.indexes["toy"]["documents"].popitem()
        return answer

    fake.faults = [("_bulk", forget)]
    with pytest.raises(DataError, match="30 passages were sent, the index has 29; run the same command again"):
        settings(fake).build(corpus, tmp_path / "index")
    settings(fake).build(corpus, tmp_path / "index")
    assert contents(fake) == TEXTS


def test_indexes_of_other_corpora_and_settings(fake: FakeServer, corpus: str, tmp_path: Path) -> None:
    settings(fake).build(corpus, tmp_path / "index")
    with pytest.raises(ConfigError, match="k1 0.82, here 0.9"):
        settings(fake, k1=0.9).open(tmp_path / "index")
    with pytest.raises(ConfigError, match="index toy is of another corpus.*b 0.68, here 0.4"):
        settings(fake, b=0.4).build(corpus, tmp_path / "other")
    short = str(write_corpus(tmp_path / "short.jsonl", TEXTS[:3]))
    with pytest.raises(ConfigError, match="another corpus"):
        settings(fake).build(short, tmp_path / "third")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no passage"):
        settings(fake, name="empty").build(str(tmp_path / "empty.jsonl"), tmp_path / "empty")
    assert list(fake.indexes) == ["toy"]


def test_passwords(fake: FakeServer, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.password = "opened by sésame 芝麻"
    config = settings(fake)
    config = replace(config, server=replace(config.server, user="reader"))
    with pytest.raises(ConfigError, match="expected a password in \\$OPENSEARCH_PASSWORD"):
        config.build(corpus, tmp_path / "index")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", "wrong")
    with pytest.raises(ConfigError, match="refuses the user reader"):
        config.build(corpus, tmp_path / "index")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", fake.password)
    config.build(corpus, tmp_path / "index")
    with pytest.raises(
        DataError, match=r"config\.server\.user: the record asks http.* with a user and a password of yours"
    ):
        RecordedConfig().open(tmp_path / "index")
    assert config.open(tmp_path / "index").search(["stone"], 1)[0]
    assert all("芝麻".encode() not in file.read_bytes() for file in (tmp_path / "index").iterdir())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SearchServerConfig("localhost:9200"), "expected http://HOST:PORT"),
        (lambda: SearchServerConfig("https://me:secret@host"), "expected no user or password in it"),
        (
            lambda: SearchServerConfig(client="solr"),
            "server.client: expected one of opensearch, elasticsearch, got 'solr'",
        ),
        (lambda: SearchServerConfig(retries=-1), "retries"),
        (lambda: SearchServerConfig(timeout_s=0), "timeout_s"),
        (lambda: OpenSearchConfig("Upper"), "expected lower case"),
        (lambda: OpenSearchConfig("toy", b=2.0), "b: expected at least 0 and at most 1"),
        (lambda: OpenSearchConfig("toy", bulk=0), "bulk"),
        (lambda: SearchServer(SearchServerConfig("https://host", ca_file="absent.pem")), "no file of certificates"),
    ],
)
def test_settings_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
