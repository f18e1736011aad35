"""What a component reads of a response, and where what it says of it lands in the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from rewards_toy import rollout

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, SegmentScores, Turns
from finegrained_rlhf.rewards import BaseScorer, ComponentConfig, RewardComposer, RewardConfig

MARK = "</think>"


class Words(BaseScorer):
    """−1 a word that is `red`, 1 any other; what it was given is kept."""

    def __init__(self) -> None:
        self.asked: list[tuple[Prompt, str]] = []

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        self.asked += list(zip(prompts, responses, strict=True))
        spans, values = [], []
        for text in responses:
            places, at = [], 0
            for word in text.split():
                at = text.index(word, at)
                places.append((at, at + len(word)))
                at += len(word)
            spans.append(tuple(places))
            values.append(tuple(-1.0 if text[a:b] == "red" else 1.0 for a, b in places))
        return SegmentScores(spans, values)


class Length(BaseScorer):
    """The words of the whole; nothing is known of a text that holds `dog`."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        unknown = frozenset(row for row, text in enumerate(responses) if "dog" in text)
        spans = [() if row in unknown else ((0, len(text)),) for row, text in enumerate(responses)]
        values = [() if row in unknown else (float(len(text.split())),) for row, text in enumerate(responses)]
        return SegmentScores(spans, values, True, unknown)


def composer(**settings: ComponentConfig) -> RewardComposer:
    components = {"words": Words(), "length": Length()}
    return RewardComposer(RewardConfig(components, {"words": 1.0, "length": 1.0}, settings))


def asked(reward: RewardComposer) -> list[tuple[Prompt, str]]:
    words = reward.config.components["words"]
    assert isinstance(words, Words)
    return words.asked


OPEN, CLOSED = Prompt("a", "who?\nassistant\n", (1,)), Prompt("b", f"who?\nassistant\n<think>\n\n{MARK}\n\n", (1,))


@pytest.mark.parametrize(
    ("prompt", "response", "read"),
    [
        (OPEN, f"<think>\nred red\n{MARK}\n\nthe cat", "the cat"),
        (OPEN, f"red {MARK} the {MARK} red", f"the {MARK} red"),  # what follows the first mark: nothing can be hidden
        (OPEN, f"red {MARK}", ""),
        (OPEN, "<think> the red cat", ""),  # never came to its answer
        (OPEN, "the red cat", ""),
        (CLOSED, "the red cat", "the red cat"),
        (CLOSED, f"red {MARK} the cat", f"red {MARK} the cat"),
    ],
)
def test_a_component_reads_what_follows_the_thinking(prompt: Prompt, response: str, read: str) -> None:
    reward = composer(words=ComponentConfig(after=MARK))
    scores = reward.score([prompt], [response])
    assert [text for _, text in asked(reward)] == [read]
    words = [response[start:end] for start, end in scores["words"].spans[0]]
    assert words == read.split()
    assert scores["words"].values[0] == tuple(-1.0 if word == "red" else 1.0 for word in words)
    assert scores["length"].values[0] == (float(len(response.split())),)  # the other component reads all


def test_thinking_that_never_ends_is_an_empty_answer() -> None:
    """It costs what an empty answer costs, on the last token."""
    reward = composer(words=ComponentConfig(after=MARK, empty=-3.0))
    drawn = rollout(["red the cat", "red", ""])
    trace = reward.compose(drawn, reward.score(drawn.row_prompts(), drawn.texts), train=False)
    assert trace.components["words"].scores.spans == (((0, 0),),) * 3
    assert trace.components["words"].weighted.sum(dim=1).tolist() == [-3.0] * 3


def test_the_trace_covers_thinking_and_answer() -> None:
    """The word behind `cat` (the mark here) is paid where it stands in the whole, and nothing of the thinking is."""
    reward = composer(words=ComponentConfig(after="cat"))
    drawn = rollout(["the red cat sat red", "red", ""])
    trace = reward.compose(drawn, reward.score(drawn.row_prompts(), drawn.texts), train=False)
    assert trace.components["words"].weighted[0].tolist() == [0.0, 0.0, 0.0, 1.0, -1.0, 0.0]
    assert float(trace.components["length"].weighted[0, 5]) == 5.0


TALK = "the cat user red one assistant red sat user the dog assistant one"
TURNS = Turns(
    ((0, 3), (6, 9), (13, 15)),
    ((0, 7), (31, 38), (62, 65)),
    ({"role": "user", "content": "red one"}, {"role": "tool", "content": "the dog"}),
)


def test_each_turn_is_read_as_an_answer_to_what_came_before() -> None:
    reward = composer(length=ComponentConfig(turns="last"))
    known = {"messages": ({"role": "user", "content": "who"},), "question": "who"}
    scores = reward.score([Prompt("a", "who ", (1,), known)], [TALK], [TURNS])
    read = asked(reward)
    assert [text for _, text in read] == ["the cat", "red sat", "one"]
    assert [prompt.text for prompt, _ in read] == ["who ", "who the cat user red one assistant ", f"who {TALK[:62]}"]
    assert [prompt.metadata["question"] for prompt, _ in read] == ["who", "red one", "the dog"]
    assert [m["role"] for m in read[2][0].metadata["messages"]] == ["user", "assistant", "user", "assistant", "tool"]
    assert [TALK[a:b] for a, b in scores["words"].spans[0]] == ["the", "cat", "red", "sat", "one"]
    assert scores["words"].values[0] == (1.0, 1.0, -1.0, 1.0, 1.0)
    assert scores["length"].spans == (((62, 65),),) and scores["length"].values == ((1.0,),)


def test_no_score_of_a_turn_and_a_broken_environment() -> None:
    reward = composer()
    turns = replace(TURNS, messages=TURNS.messages[:1], tokens=TURNS.tokens[:2], spans=((0, 7), (44, 51)))
    scores = reward.score([OPEN, OPEN], [TALK, TALK], [turns, replace(TURNS, failed=True)])
    assert scores["length"].unscored == {0, 1} and scores["words"].unscored == {1}
    assert scores["length"].spans == ((), ())
    assert [text for _, text in asked(reward)] == ["the cat", TALK[44:51]]


def test_a_mark_without_a_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="after: expected a mark such as </think>"):
        ComponentConfig(after=" ")
