"""What indexes of a corpus will take: by hand, against the benchmarks, and against a rehearsal that was measured."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from dense_toy import save_encoder

from finegrained_lab.experiments import ForecastCorpus, corpus_forecast
from finegrained_lab.experiments.corpus_forecast import Size, size_of
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.retrieval.corpus import Corpus

RESULTS = Path(__file__).parents[3] / "benchmarks/results"


def write(path: Path, passages: int, first: int = 100) -> Path:
    """Passages of three words with title, and ids of four letters; lines of one length."""
    rows = [{"id": f"p{first + i}", "text": "mill stone", "title": "Tarn"} for i in range(passages)]
    write_jsonl(path, rows)
    return path


def forecast(corpus: Path, out: Path, **more: Any) -> ForecastCorpus:
    return ForecastCorpus(**{"corpus": str(corpus), "output": str(out), "dense": {}, "dense_keys": {}, **more})


def test_a_size_is_scaled_up_from_a_sample(tmp_path: Path) -> None:
    write(tmp_path / "corpus/a.jsonl", 10)
    write(tmp_path / "corpus/b.jsonl", 3, 200)
    for most in (4, 20, 26, 100):  # two of each file, all of the smaller one, all
        size = size_of(Corpus(tmp_path / "corpus"), most)
        assert (size.passages, size.words, size.id_bytes) == (13, 3.0, 4.0)
    assert size.bytes == sum(part.stat().st_size for part in Corpus(tmp_path / "corpus").parts)
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no passage"):
        size_of(Corpus(tmp_path / "none.jsonl"))


def test_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three words lie nine below the shorter benchmark's twelve."""
    corpus = write(tmp_path / "corpus.jsonl", 10)
    found = forecast(corpus, tmp_path / "out/f.json", store=True, sparse_indexes=1).run()
    bm25 = 229.5 - 9 * (4360.4 - 229.5) / 366
    assert found["steps"]["store"]["disk_bytes"] == 160.0
    assert found["steps"]["bm25"]["disk_bytes"] == pytest.approx(2 * 10 * bm25)
    seconds = corpus.stat().st_size * 3.9e-8 + 2 * 10 * (44.8e-6 - 9 * (483e-6 - 44.8e-6) / 366)
    assert found["seconds"] == pytest.approx(seconds)
    memory = 0.708e9 + (30 - 6e6) * (2.490e9 - 0.708e9) / 31.8e6 + 80
    assert found["memory_bytes"] == pytest.approx(memory)
    assert found["disk_bytes"] == pytest.approx(160 + 20 * bm25)
    assert read_json(tmp_path / "out/f.json") == found
    assert "about 10 passages of 3 words" in (said := capsys.readouterr().out) and "scaled up" in said
    elsewhere = forecast(corpus, tmp_path / "out/f.json", sparse="opensearch").run()
    assert elsewhere["steps"] == {} and elsewhere["disk_bytes"] == 0


def test_a_dense_index_is_forecast_by_its_encoder(tmp_path: Path) -> None:
    corpus, encoder = write(tmp_path / "corpus.jsonl", 10), save_encoder(tmp_path / "bert")
    keys = {"retriever.encoder.path": str(encoder), "retriever.encoder.device": "cpu"}
    found = forecast(corpus, tmp_path / "f.json", sparse="none", dense=keys, dense_indexes=3).run()
    assert found["steps"]["dense"]["disk_bytes"] == 3 * 10 * (4 * 32 + 20 + 4)
    assert found["seconds"] > 0
    half = {"retriever.storage": "float16", "retriever.index": "ivf_pq"}
    found = forecast(corpus, tmp_path / "f.json", sparse="none", dense=keys, dense_keys=half).run()
    assert found["disk_bytes"] == 10 * (2 * 32 + 20 + 4 + 64 + 8)


def test_too_little_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write(tmp_path / "corpus.jsonl", 10)
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(corpus_forecast, "free", lambda path: {"disk": 10**9, "memory": 10**12})
        forecast(corpus, tmp_path / "f.json").run()
        assert not caplog.records
        monkeypatch.setattr(corpus_forecast, "free", lambda path: {"disk": 100, "memory": 10**8})
        forecast(corpus, tmp_path / "f.json").run()
    (line,) = (record.getMessage() for record in caplog.records)
    assert "will take about 0.0 GB of disk, and 0.0 GB are free; about 0.4 GB of memory, and 0.1 GB are free" in line


def test_the_figures_are_the_benchmarks() -> None:
    measured = [read_json(RESULTS / name) for name in ("retrieval.json", "retrieval_378_words.json")]
    for i, one in enumerate(measured):
        build, disk = one["build"], one["disk"]
        assert corpus_forecast.WORDS[i] == one["corpus"]["mean_words"]
        assert corpus_forecast.BM25_BYTES[i] == pytest.approx(disk["bytes_a_passage"], rel=0.01)
        processor = build["processor_seconds"] / build["passages"]
        assert corpus_forecast.BM25_SECONDS[i] == pytest.approx(processor, rel=0.01)
        assert corpus_forecast.SHARD_TOKENS[i] == pytest.approx(disk["tokens"] / disk["shards"], rel=0.01)
        assert corpus_forecast.SHARD_MEMORY[i] == pytest.approx(build["peak_bytes"], rel=0.01)
    rehearsed = read_json(RESULTS / "rehearsal_1m.json")
    steps = {step["step"].split()[1]: step for step in rehearsed["steps"]}
    assert corpus_forecast.STORE_BYTES == pytest.approx(steps["store"]["disk_bytes"] / 10**6, rel=0.01)
    read = steps["store"]["seconds"] / rehearsed["corpus_bytes"]
    assert corpus_forecast.READ_SECONDS == pytest.approx(read, rel=0.01)
    assert corpus_forecast.ENCODER_MEMORY == pytest.approx(steps["dense"]["peak_bytes"], rel=0.01)


def test_a_rehearsal_that_was_measured_is_met_within_a_third() -> None:
    """BM25 over a million passages of 60 words lies between the benchmarks that the figures come from."""
    rehearsed = read_json(RESULTS / "rehearsal_1m.json")
    (measured,) = (step for step in rehearsed["steps"] if step["step"] == "2 bm25")
    size = Size(rehearsed["passages"], rehearsed["words"], 8.0, rehearsed["corpus_bytes"], ())
    found = corpus_forecast._bm25(size)
    for name, other in (("disk_bytes", "disk_bytes"), ("memory_bytes", "peak_bytes"), ("seconds", "seconds")):
        assert 3 / 4 < found[name] / measured[other] < 4 / 3
