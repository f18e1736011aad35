"""Scorers that break the rules: one error that names component, prompt and response; what counts as free of errors."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.inference.evaluation import evaluate_responses
from finegrained_rlhf.rewards import BaseScorer, RewardComposer, RewardConfig
from finegrained_rlhf.runtime.processes import Processes

PROMPTS = [Prompt("first", "…", ()), Prompt("second", "…", ())]
RESPONSES = ["A dog.", "It ran far away."]


class Gives(BaseScorer):
    """What a function makes of prompts and responses."""

    def __init__(self, make: Callable[[Sequence[Prompt], Sequence[str]], Any]) -> None:
        self.make = make

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        return self.make(prompts, responses)


class Starts(Gives):
    """The same in two steps; breaks in the second."""

    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        return lambda: self.make(prompts, responses)


def spans(*ends: int) -> list[tuple[tuple[int, int], ...]]:
    return [((0, end),) for end in ends]


def raises(error: Exception, on: str) -> Callable[..., Any]:
    def make(prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        if any(on in response for response in responses):
            raise error
        return SegmentScores(spans(*map(len, responses)), [(1.0,)] * len(responses))

    return make


SECOND = "for prompt 'second', response 'It ran far away.'"
WRONG: list[tuple[str, Callable[..., Any], tuple[str, ...]]] = [
    ("floats", lambda p, r: [0.5, 1.0], ("gave list, expected SegmentScores", "for prompt 'first', response 'A dog.'")),
    ("none", lambda p, r: None, ("gave NoneType, expected SegmentScores",)),
    (
        "words",
        lambda p, r: SegmentScores(spans(3, 3), cast(Any, [(1.0,), ("good",)])),
        ("gave 'good' (str)", "number", SECOND),
    ),
    ("nan", lambda p, r: SegmentScores(spans(3, 3), [(1.0,), (float("nan"),)]), ("a value that is not finite", SECOND)),
    ("beyond", lambda p, r: SegmentScores(spans(3, 17), [(1.0,), (1.0,)]), ("a segment 0:17 outside", "0:16", SECOND)),
    ("empty", lambda p, r: SegmentScores([((0, 2),), ((4, 4),)], [(1.0,), (1.0,)]), ("a segment 4:4", SECOND)),
    (
        "one number",
        lambda p, r: SegmentScores(cast(Any, [((0, 2),), (4,)]), [(1.0,), (1.0,)]),
        ("gave 4 for a segment", SECOND),
    ),
    ("few", lambda p, r: SegmentScores(spans(3), [(1.0,)]), ("scored 1 responses, 2 were given",)),
    (
        "raises",
        raises(KeyError("passages"), "far"),
        ("broke", SECOND, "KeyError: 'passages'", "test_rewards_checks.py"),
    ),
    ("no message", raises(AssertionError(), "far"), ("broke", SECOND, "AssertionError: no message")),
    ("unequal", lambda p, r: SegmentScores(spans(3, 3), [(1.0,)]), ("broke", "2 responses have spans, 1 have values")),
]


@pytest.mark.parametrize("kind", [Gives, Starts])
@pytest.mark.parametrize(("make", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_one_error_names_component_prompt_and_response(kind: type, make: Any, said: tuple[str, ...]) -> None:
    composer = RewardComposer(RewardConfig({"mine": kind(make)}, {"mine": 1.0}))
    with pytest.raises(ConfigError) as refused:
        composer.score(PROMPTS, RESPONSES)
    message = str(refused.value)
    assert message.startswith("reward component mine ") and "\n" not in message
    assert all(part in message for part in said), message


@pytest.mark.parametrize(
    "error", [DataError("no passages", record="second"), torch.OutOfMemoryError("CUDA"), MemoryError()]
)
def test_errors_that_say_enough_pass(error: Exception) -> None:
    composer = RewardComposer(RewardConfig({"mine": Gives(raises(error, "far"))}, {"mine": 1.0}))
    with pytest.raises(type(error)) as passed:
        composer.score(PROMPTS, RESPONSES)
    assert passed.value is error


def test_numbers_of_other_libraries_are_numbers() -> None:
    values = [(np.float32(0.5),), (torch.tensor(-1.0),)]
    composer = RewardComposer(
        RewardConfig({"mine": Gives(lambda p, r: SegmentScores(spans(3, 3), values))}, {"mine": 1.0})
    )
    assert composer.totals(composer.score(PROMPTS, RESPONSES)) == pytest.approx([0.5, -1.0])


# What is free of errors -----------------------------------------------------------------------------------------


def free_share(scorer: Any, prompts: Sequence[Prompt], responses: Sequence[str]) -> float:
    composer = RewardComposer(RewardConfig({"mine": scorer}, {"mine": 1.0}))
    found = evaluate_responses(prompts, responses, Processes(), composer=composer, progress=False)
    return found.metrics["reward/mine/error_free_share"]


@pytest.mark.needs("spacy")
def test_the_penalty_of_the_extending_page_counts_what_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """GroundedNumbers gives 0 to a sentence that is fine and −1 to one with a made-up number."""
    page = (Path(__file__).parents[2] / "docs/extending.md").read_text(encoding="utf-8")
    body = next(b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "GroundedNumbers" in b)
    module = types.ModuleType("my_rewards_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(body, "extending.md", "exec"), module.__dict__)
    lake = Passage("", "Lake", ("It is 3 km wide.", "It froze in 1963."))
    prompts = [Prompt(name, "…", (), {"passages": (lake,)}) for name in ("a", "b")]
    responses = ["It is 3 km wide. It froze in 1936. It is cold.", "It is 3 km wide."]
    assert free_share(module.GroundedNumbers(), prompts, responses) == pytest.approx(3 / 4)
    assert free_share(module.GroundedNumbers(), prompts, [responses[1], responses[1]]) == 1.0


class OneOrZero(BaseScorer):
    """1 for the first segment of a response, 0 for the second."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        return SegmentScores([((0, 1), (1, 2))] * len(responses), [(1.0, 0.0)] * len(responses))


@pytest.mark.needs("spacy")
def test_a_scorer_says_where_its_errors_begin() -> None:
    scorer = OneOrZero()
    assert free_share(scorer, PROMPTS, RESPONSES) == 1.0  # 0 is no error unless it says so
    scorer.error_free_from = 1.0
    assert free_share(scorer, PROMPTS, RESPONSES) == 0.5
