"""Several judgements of an answer: means, splits, what is kept; and a judge held against people's marks."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feedback_samples import record
from remote_toy import FakeService

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.generation.asking import fenced_data
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.rewards import Judge, JudgeScorer
from finegrained_rlhf.runtime import RemoteConfig
from reward_models import EvaluateJudge

pytestmark = pytest.mark.needs("spacy")

TAXONOMY = {"wrong": "contradicts the passages", "irrelevant": "nobody asked"}
ANSWER = "It is deep. It is red. Lakes are wet."
PROMPT = Prompt("q", "", (), {"question": "What is it like?", "passages": ()})


def judge(service: FakeService, path: Path, samples: int = 4, temperature: float | None = 1.0) -> Judge:
    remote = RemoteConfig(service.url, backoff_s=0.001, longest_wait_s=0.01, budget_s=20.0)
    return Judge(remote, "some", path, TAXONOMY, temperature=temperature, samples=samples, tries=1)


def replies(*of: dict[str, Any] | str) -> Callable[[dict[str, Any]], Any]:
    """The first time that an answer is asked about the first of these, and so on, whatever the order of requests."""
    times, lock = Counter[str](), threading.Lock()

    def reply(body: dict[str, Any]) -> Any:
        answer = fenced_data(body["messages"][-1]["content"])["answer"]
        with lock:
            times[answer] += 1
            one = of[(times[answer] - 1) % len(of)]
        content = one if isinstance(one, str) else json.dumps(one)
        return {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}

    return reply


def quoted(*errors: tuple[str, str]) -> dict[str, Any]:
    return {"errors": [{"quote": quote, "kind": kind} for quote, kind in errors]}


RED, BOTH, NONE = quoted(("It is red", "wrong")), quoted(("It is red", "wrong"), ("It is deep", "wrong")), quoted()


def test_a_segment_has_the_mean_of_samples_and_each_is_kept(tmp_path: Path) -> None:
    with FakeService(replies(RED, BOTH, NONE, RED)) as service:
        scorer = JudgeScorer(judge(service, tmp_path / "a.sqlite"), ["wrong"])
        scores = scorer.score([PROMPT, PROMPT], [ANSWER, "Fine."])
        assert scores.values == [(0.5, -0.5, 1.0), (1.0,)]
        assert scores.counts["split"] == 1 and scores.counts["read"] == 2
        asked = len(service.requests)
        again = JudgeScorer(judge(service, tmp_path / "a.sqlite"), ["wrong"]).score([PROMPT], [ANSWER])
        assert again.values == [(0.5, -0.5, 1.0)] and len(service.requests) == asked == 8
        fewer = JudgeScorer(judge(service, tmp_path / "a.sqlite", samples=1), ["wrong"]).score([PROMPT], [ANSWER])
        assert "split" not in fewer.counts and len(service.requests) == asked
        bodies = [body["messages"] for body in service.requests]
        assert bodies.count(bodies[0]) == 4  # a sample is asked for in the same words


def test_odd_replies_are_outcomes_of_their_sample(tmp_path: Path) -> None:
    lost = quoted(("nowhere to be found in there", "wrong"))
    with FakeService(replies(RED, "I cannot say.", NONE, lost)) as service:
        scores = JudgeScorer(judge(service, tmp_path / "a.sqlite"), ["wrong"]).score([PROMPT], [ANSWER])
        assert scores.values == [(1.0, 0.0, 1.0)] and scores.counts["read"] == 1 and not scores.unscored
        charged = JudgeScorer(judge(service, tmp_path / "b.sqlite"), ["wrong"], unlocated="charge")
        assert charged.score([PROMPT], [ANSWER]).values == [pytest.approx((1 / 3, -1 / 3, 1 / 3))]
    with FakeService(replies("I cannot say.", "", "{", "No.")) as service:
        scorer = JudgeScorer(judge(service, tmp_path / "c.sqlite"), ["wrong"], failures=1.0)
        scores = scorer.score([PROMPT], [ANSWER])
        assert scores.unscored == {0} and scores.counts["unreadable"] == 1 and scores.values == [()]


@pytest.mark.parametrize(("samples", "temperature"), [(0, 1.0), (2, 0.0)])
def test_samples_need_chance(tmp_path: Path, samples: int, temperature: float) -> None:
    with FakeService() as service, pytest.raises(ConfigError, match="^samples: expected at least 1"):
        judge(service, tmp_path / "a.sqlite", samples, temperature)


def evaluated(tmp_path: Path, service: FakeService, capsys: Any, **keys: Any) -> dict[str, Any]:
    """People mark `It is red.` as wrong in the first answer and nothing in the second."""
    marked = record(ANSWER, [("It is red.", "Wrong-Grounding")], name="a")
    write_feedback(tmp_path / "f.json", [marked, record("It is very deep.", name="b")])
    scorer = JudgeScorer(judge(service, tmp_path / "j.sqlite"), ["wrong"], failures=1.0)
    files = {"data": str(tmp_path / "f.json"), "output": str(tmp_path / "o.json")}
    report = EvaluateJudge(**{"scorers": {"factuality": scorer}, **files, **keys}).run()
    printed = capsys.readouterr().out
    assert (
        report == read_json(tmp_path / "o.json") and "report: " in printed and "answers without a judgement" in printed
    )
    factuality: dict[str, Any] = report["categories"]["factuality"]
    return factuality


def test_a_judge_is_held_against_peoples_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeService(replies(RED, BOTH, RED, RED)) as service:
        report = evaluated(tmp_path, service, capsys)
    assert (report["items"], report["accuracy"], report["precision"], report["recall"]) == (3, 1.0, 1.0, 1.0)
    # of three sentences one is marked by 1 of 4, one by all, one by none; the second answer's quotes lie nowhere in it
    assert (
        report["examples"] == report["unscored"] == report["outcomes"]["unlocated"] == report["outcomes"]["split"] == 1
    )
    assert report["spread"] == pytest.approx(math.sqrt(1 - 0.5**2) / 3)


def test_what_cannot_be_held_against_marks_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeService(replies("I cannot say.")) as service:
        with pytest.raises(DataError, match="no answer has a judgement of factuality: {'unreadable': 2}"):
            evaluated(tmp_path, service, capsys)
        scorer = JudgeScorer(judge(service, tmp_path / "k.sqlite"))
        wrong: dict[str, tuple[Any, str]] = {
            "none": ({}, "scorers: name a judge"),
            "whole answers": ({"completeness": scorer}, r"scorers\.completeness: a judge marks segments"),
            "no scorer": ({"factuality": "x"}, r"scorers\.factuality: str has no setup"),
        }
        for scorers, problem in wrong.values():
            with pytest.raises(ConfigError, match=problem):
                evaluated(tmp_path, service, capsys, scorers=scorers)
    with FakeService(replies(NONE)) as service:
        text = "It is deep and cold and very wide, says the man who knows it very well. It is red."
        write_feedback(tmp_path / "g.json", [record(text, name="a")])
        files = {"data": str(tmp_path / "g.json"), "output": str(tmp_path / "o.json")}
        by_sentence = JudgeScorer(judge(service, tmp_path / "l.sqlite"), ["wrong"])
        with pytest.raises(
            ConfigError, match=r"scorers\.relevance cuts the answer of a otherwise than segmenter=english"
        ):
            EvaluateJudge({"relevance": by_sentence}, **files).run()
