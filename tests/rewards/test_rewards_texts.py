"""Rewards from scores of bare texts: what each segment takes away adds up to what the whole text is worth."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import pytest
import torch
from properties import given, st
from rewards_toy import rollout

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards import (
    ComponentConfig,
    PrefixDifferenceScorer,
    RewardComposer,
    RewardConfig,
    TextScorer,
    WholeTextScorer,
)


class Scores:
    """Any function of a text as a scorer, and what was asked of it."""

    identity = "test"

    def __init__(self, score: Callable[[str], float]) -> None:
        self._score, self.asked, self.device = score, [], None

    def setup(self, device: torch.device) -> None:
        self.device = device

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        self.asked.append(list(texts))
        return [self._score(text) for text in texts]


def noise(text: str) -> float:
    """A number in [0, 1) that a text alone decides, and that says nothing of its prefixes'."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6], "big") / 2**48


def rudeness(text: str) -> float:
    return min(1.0, 0.4 * text.count("fool")) * (0.5 if "sorry" in text else 1.0)


def scored(scorer: PrefixDifferenceScorer | WholeTextScorer, *responses: str) -> SegmentScores:
    return scorer.score([Prompt("p", "a fool asks", (1,))] * len(responses), responses)


TEXTS = st.text(
    st.characters(codec="utf-8") | st.sampled_from(list(". !?\n,\u3002\u200b\u0301\U0001f600aA")), max_size=80
)


@given(st.lists(TEXTS, max_size=4), st.sampled_from(["sentence", "sub_sentence"]))
def test_the_rewards_of_the_segments_add_up_to_the_holistic_one_less_1(texts: list[str], granularity: str) -> None:
    parts = scored(PrefixDifferenceScorer(Scores(noise), granularity), *texts)
    wholes = scored(WholeTextScorer(Scores(noise)), *texts)
    assert wholes.whole_response and not parts.whole_response
    for text, values, (whole,) in zip(texts, parts.values, wholes.values, strict=True):
        assert sum(values) == pytest.approx(whole - 1, abs=1e-6)
        assert whole == 1 or text.strip()


@pytest.mark.needs("spacy")
def test_a_sentence_earns_what_it_takes_away() -> None:
    scores = scored(PrefixDifferenceScorer(Scores(rudeness)), " You fool. Fine day! I am sorry.", "Fine day.")
    assert scores.spans == (((1, 10), (11, 20), (21, 32)), ((0, 9),))
    assert scores.values[0] == pytest.approx((-0.4, 0.0, 0.2)) and scores.values[1] == (0.0,)


@pytest.mark.needs("spacy")
def test_the_scorer_sees_the_text_as_it_stands_and_never_the_prompt() -> None:
    """A prefix keeps the white space before it; each text is asked for once, the shortest first, all in one call."""
    scorer = Scores(rudeness)
    scored(PrefixDifferenceScorer(scorer), " Two\n words.  More. ", "You fool.", " Two\n words.", "", " ")
    assert scorer.asked == [["You fool.", " Two\n words.", " Two\n words.  More."]]
    whole = Scores(rudeness)
    scored(WholeTextScorer(whole), " Two\n words.  More. ", "", "You fool.", "You fool. ")
    assert whole.asked == [["You fool.", " Two\n words.  More."]]


@pytest.mark.needs("spacy")
def test_no_text_has_the_score_0() -> None:
    nothing = Scores(noise)
    assert scored(PrefixDifferenceScorer(nothing), "", " \n").values == ((), ())
    whole = scored(WholeTextScorer(nothing), "", " \n")
    assert whole.values == ((1.0,), (1.0,)) and whole.spans == (((0, 0),), ((0, 2),))
    assert nothing.asked == []


@pytest.mark.needs("spacy")
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_no_reward_is_made_of_what_is_no_score(value: float) -> None:
    with pytest.raises(ConfigError, match=r"test gave .* for a text of 9 characters, not 0 to 1"):
        scored(PrefixDifferenceScorer(Scores(lambda _: value)), "You fool.")


@pytest.mark.needs("spacy")
def test_one_score_a_text() -> None:
    scorer = Scores(noise)
    scorer.score_texts = lambda texts: [0.0]
    with pytest.raises(ConfigError, match="test gave 1 scores for 2 texts"):
        scored(WholeTextScorer(scorer), "One.", "Two.")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="granularity must be sub_sentence or sentence, got 'word'"):
        PrefixDifferenceScorer(Scores(noise), "word")
    assert isinstance(Scores(noise), TextScorer)


@pytest.mark.needs("spacy")
def test_in_a_run_each_reward_lies_on_the_last_token_of_its_sentence() -> None:
    """And the two rewards of a response, each in its own place, still add up."""
    drawn = rollout(("the cat! the dog ran! red", "one cat sat!", ""), (True, False, True))
    config = RewardConfig(
        components={"parts": PrefixDifferenceScorer(Scores(noise)), "whole": WholeTextScorer(Scores(noise))},
        weights={"parts": 1.0, "whole": 2.0},
        settings={"parts": ComponentConfig(empty=0.0)},
    )
    composer = RewardComposer(config)
    composer.setup(torch.device("cpu"))
    assert config.components["parts"].scorer.device == torch.device("cpu")
    scores = composer.score(drawn.prompts, drawn.texts)
    trace = composer.compose(drawn, scores)
    parts, whole = trace.components["parts"], trace.components["whole"]
    assert [len(tokens) for tokens in parts.tokens] == [3, 1, 0]
    ends = [drawn.token_ends[0][token] for token in parts.tokens[0]]
    assert ends == [end for _, end in scores["parts"].spans[0]]
    assert torch.allclose(parts.raw.sum(1), whole.raw.sum(1) - 1, atol=1e-6)
    assert torch.allclose(trace.total, parts.raw + 2 * whole.raw)
