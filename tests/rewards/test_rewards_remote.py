"""Scorers behind a service: each text is asked for once, whatever happens between, and no score is made up."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_toy import KEY, FakeService, toxicity

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.rewards import PerspectiveScorer, RecordedScorer, TextScorer
from finegrained_rlhf.runtime import RemoteConfig
from finegrained_rlhf.runtime.remote.client import RemoteError

ROOT = Path(__file__).parents[2]
TEXTS = ["You fool.", "All is well.", "Zwölf Boxkämpfer 🥊", "a\x00b", " so "]


def remote(url: str, **settings: Any) -> RemoteConfig:
    return RemoteConfig(url, **{"backoff_s": 0.001, "longest_wait_s": 0.01, "budget_s": 20.0, **settings})


def perspective(service: FakeService, cache: Path, **settings: Any) -> PerspectiveScorer:
    return PerspectiveScorer(remote(service.url), cache, **settings)


def test_perspective_gives_each_text_its_score_and_asks_once(tmp_path: Path) -> None:
    true = [toxicity(text) for text in TEXTS]
    with FakeService() as service:
        scorer = perspective(service, tmp_path / "scores.sqlite")
        assert isinstance(scorer, TextScorer)
        scorer.setup(torch.device("cpu"))
        assert scorer.score_texts([*TEXTS, TEXTS[0]]) == [*true, true[0]]
        assert scorer.score_texts(TEXTS[::-1]) == true[::-1]
        assert perspective(service, tmp_path / "scores.sqlite").score_texts(TEXTS) == true  # another process, say
        assert set(service.asked.values()) == {1} and len(service.requests) == len(TEXTS)
        assert service.requests[0]["doNotStore"] is True and service.requests[0]["languages"] == ["en"]
        for other in ({"attribute": "INSULT"}, {"languages": ["de"]}, {"version": "2"}):
            assert perspective(service, tmp_path / "scores.sqlite", **other).identity != scorer.identity
            perspective(service, tmp_path / "scores.sqlite", **other).score_texts(TEXTS[:1])
        assert service.asked[TEXTS[0]] == 4


def test_perspective_refuses_what_the_service_would(tmp_path: Path) -> None:
    with FakeService() as service:
        scorer = perspective(service, tmp_path / "scores.sqlite")
        with pytest.raises(DataError, match="a text of 20,481 bytes; Perspective reads 20,480"):
            scorer.score_texts(["fine", "x" * 20_481])
        with pytest.raises(DataError, match="a text holds a lone surrogate at character 1"):
            scorer.score_texts(["a\ud83d"])
        assert not service.requests
    with pytest.raises(ConfigError, match=r"need an attribute and languages, got '' and \['en'\]"):
        perspective(service, tmp_path / "scores.sqlite", attribute="")


@pytest.mark.parametrize("value", [None, "0.5", -0.1, 1.5, True, {}])
def test_what_is_no_score_becomes_none(tmp_path: Path, value: Any) -> None:
    with FakeService() as service:
        service.answer = lambda body: {"attributeScores": {"TOXICITY": {"summaryScore": {"value": value}}}}
        scorer = PerspectiveScorer(remote(service.url, budget_s=0.02), tmp_path / "scores.sqlite")
        with pytest.raises(RemoteError, match="the last one: an answer without a score of TOXICITY from 0 to 1, but"):
            scorer.score_texts(TEXTS)
    with pytest.raises(DataError, match="the file holds no scores"):
        RecordedScorer(tmp_path / "scores.sqlite")


def test_the_key_is_on_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSPECTIVE_API_KEY", KEY)
    with FakeService(key=KEY) as service:
        here = remote(service.url, key_variable="PERSPECTIVE_API_KEY")
        scorer = PerspectiveScorer(here, tmp_path / "scores.sqlite")
        assert scorer.score_texts(TEXTS[:1]) == [toxicity(TEXTS[0])]
        assert KEY not in scorer.identity + repr(here) + repr(vars(scorer))
    assert not [path for path in tmp_path.iterdir() if KEY.encode() in path.read_bytes()]
    monkeypatch.delenv("PERSPECTIVE_API_KEY")
    with pytest.raises(ConfigError, match="expected a key in the environment variable PERSPECTIVE_API_KEY"):
        PerspectiveScorer(here, tmp_path / "scores.sqlite")


def test_recorded_scores_ask_nobody(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    with FakeService() as service:
        scorer = perspective(service, path)
        scorer.score_texts(TEXTS)
    recorded = RecordedScorer(path)
    assert isinstance(recorded, TextScorer) and recorded.identity == scorer.identity
    recorded.setup(torch.device("cpu"))
    assert recorded.score_texts(TEXTS) == [toxicity(text) for text in TEXTS]
    with pytest.raises(
        DataError, match=r"2 of 3 texts have no kept score by perspective .*, the first of 4 characters"
    ):
        recorded.score_texts(["new.", TEXTS[0], "newer"])
    with FakeService() as service:
        perspective(service, path).score_texts(TEXTS[:2])
    with pytest.raises(
        DataError, match=r"expected the scores of one source, or its name \(source\): . scores by .*; . scores by"
    ):
        RecordedScorer(path)
    assert RecordedScorer(path, scorer.identity).score_texts(TEXTS[:1]) == [toxicity(TEXTS[0])]
    with pytest.raises(DataError, match="field source: has no scores of source='nobody': . scores by"):
        RecordedScorer(path, "nobody")
    with pytest.raises(DataError, match="the file is missing"):
        RecordedScorer(tmp_path / "none.sqlite")


SCORING = """
import json, sys
from finegrained_rlhf.rewards import PerspectiveScorer
from finegrained_rlhf.runtime import RemoteConfig
url, cache, count, rate, out = sys.argv[1:]
here = RemoteConfig(url, concurrency=16, items_per_s=float(rate), burst=16, backoff_s=0.01, longest_wait_s=0.2)
texts = [f"text {number}" for number in range(int(count))]
scores = PerspectiveScorer(here, cache).score_texts(texts)
open(out, "w").write(json.dumps(scores))
"""


def _kills(tmp_path: Path, count: int, rate: float) -> None:
    """Scores `count` texts at the service's quota, with faults; killed three times and run again each time."""
    rng, kinds = random.Random(1), ((429,), (500,), b'{"attr', {"attributeScores": {}}, (503, {"Retry-After": "0"}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with FakeService() as service:
        service.quota = rate
        service.fault = lambda number, body: rng.choice(kinds) if rng.random() < 0.05 else None
        args = [sys.executable, "-c", SCORING, service.url, str(tmp_path / "kept.sqlite"), str(count), str(0.9 * rate)]
        for kill in (1, 2, 3, None):
            process = subprocess.Popen([*args, str(tmp_path / "out.json")], env=env)
            while kill is not None and len(service.asked) < count * kill / 4:
                time.sleep(0.01)
                assert process.poll() is None
            if kill is not None:
                process.send_signal(signal.SIGKILL)
            assert process.wait(timeout=300) == (0 if kill is None else -signal.SIGKILL)
        scores = json.loads((tmp_path / "out.json").read_text())
        assert scores == [toxicity(f"text {number}") for number in range(count)]
        assert len(service.asked) == count
        assert sum(service.asked.values()) - count <= 3 * 16  # what was under way at each kill


def test_a_scoring_that_is_killed_three_times_repeats_no_query_that_was_answered(tmp_path: Path) -> None:
    _kills(tmp_path, 400, 400.0)


@pytest.mark.slow
def test_ten_thousand_items_at_the_quota_with_faults_and_kills(tmp_path: Path) -> None:
    _kills(tmp_path, 10_000, 500.0)
