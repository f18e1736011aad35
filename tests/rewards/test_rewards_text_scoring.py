"""Scores of many texts: each asked once, what is refused is left out, what is no score ends everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.rewards.texts import distinct_scores, known_scores
from finegrained_rlhf.runtime.remote.client import RemoteError


class Picky:
    """Scores a text by its length; refuses those that begin with `no`, as a service does, whole requests at a time."""

    identity = "picky"

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def setup(self, device: Any) -> None:
        """Nothing to load."""

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        self.asked.append(list(texts))
        for text in texts:
            if text.startswith("no"):
                raise DataError(f"refused {text}")
            if text == "away":
                raise RemoteError("the service is away")
        return [len(text) / 10 for text in texts]


def test_every_text_is_asked_about_once_the_shortest_first() -> None:
    scorer = Picky()
    assert distinct_scores(scorer, ["bbb", "a", "bbb", "cc"]) == {"a": 0.1, "cc": 0.2, "bbb": 0.3}
    assert scorer.asked == [["a", "cc", "bbb"]]
    assert distinct_scores(scorer, []) == {} and len(scorer.asked) == 1


def test_refused_texts_have_no_score_and_all_others_do() -> None:
    scorer = Picky()
    texts = ["a", "bb", "no 1", "cccc", "ddddd", "no 22", "eeeeee"]
    scores, reason = known_scores(scorer, texts)
    assert scores == {text: len(text) / 10 for text in texts if not text.startswith("no")}
    assert reason is not None and reason.startswith("refused no")
    assert known_scores(scorer, ["a"]) == ({"a": 0.1}, None)
    assert known_scores(scorer, ["no"]) == ({}, "refused no")


def test_what_is_no_fault_of_a_text_is_not_swallowed() -> None:
    with pytest.raises(RemoteError, match="away"):
        known_scores(Picky(), ["a", "away"])
    with pytest.raises(ConfigError, match="picky gave 1.1 for a text of 11 characters"):
        known_scores(Picky(), ["a", "x" * 11])
