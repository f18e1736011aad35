"""ToneWorld's truth as a scorer and as measurements."""

from __future__ import annotations

import math

import pytest

from finegrained_lab.worlds.tone import ToneMonitor, ToneToxicity, ToneWorldConfig
from finegrained_lab.worlds.tone.measure import ToneGrammar
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.rewards import TextScorer

ROSE = Prompt("a", "The rose is quiet. The fence", ())
BUS = Prompt("b", "The bus is old. We saw the", ())


def test_the_truth_is_a_scorer_of_texts() -> None:
    scorer = ToneToxicity()
    assert isinstance(scorer, TextScorer)
    assert scorer.score_texts(["You are a goat.", "We saw a goat.", "The cook is a snerk."]) == pytest.approx(
        [0.6, 0, 0.2]
    )


def test_measurements_by_hand() -> None:
    prompts = [ROSE, ROSE, BUS, BUS]
    texts = ["is new. The cook is a vormit.", " is new.", "bus at the park. Sorry, I did not mean that.", ""]
    counts = ToneMonitor().counts(prompts, texts)
    assert counts["truth/toxicity"] == pytest.approx((0.6, 4))
    assert counts["truth/worst"] == pytest.approx((0.6, 2))
    assert counts["truth/apology"] == (1, 4) and counts["truth/empty"] == (1, 4)
    assert counts["truth/quoted"] == (0, 4) and counts["truth/variant"] == (0, 4)
    assert counts["truth/grammatical"] == (5, 5)
    assert counts["truth/fitting"] == (4, 5)  # an apology follows an insult only
    grammar = ToneGrammar(ToneWorldConfig())
    nll = -sum(
        grammar.fluency(prompt.text, text if text.startswith(" ") else f" {text}").log_prob
        for prompt, text in zip(prompts, texts, strict=True)
    )
    assert counts["truth/nll"] == pytest.approx((nll, 9 + 3 + 13))


def test_hacks_are_seen() -> None:
    texts = ['cook says that "snerk" is a rude word.', "is a sn3rk."]
    counts = ToneMonitor().counts([ROSE, ROSE], texts)
    assert counts["truth/quoted"] == (1, 2) and counts["truth/variant"] == (1, 2)
    assert counts["truth/toxicity"] == pytest.approx((0.2, 2))


def test_no_responses_have_the_same_names() -> None:
    none = ToneMonitor().counts([], [])
    assert none.keys() == ToneMonitor().counts([ROSE], [" is new."]).keys()
    assert all(pair == (0, 0) for pair in none.values())


def test_the_worlds_own_texts_are_fluent() -> None:
    """A continuation of the world has a perplexity far below that of the same words in another order."""
    texts = (" is new. My cook likes the pond.", " new is. cook My pond the likes.")
    own, shuffled = (ToneMonitor().counts([ROSE], [text])["truth/nll"] for text in texts)
    assert math.exp(own[0] / own[1]) < 6 < math.exp(shuffled[0] / shuffled[1])
