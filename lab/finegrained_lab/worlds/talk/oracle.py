"""The truth about a conversation of TalkWorld: which turns are wrong. Any text has a verdict."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.rewards.protocol import BaseScorer

STEPS = ("one", "two", "three", "four", "five", "six")
"""How a message begins to say what is to be opened: the number of the turn."""
TURNS = len(STEPS)
"""Of the policy, in a whole conversation."""
_ORDER = re.compile(rf"\b(?:{'|'.join(STEPS)}) (\w+)")


def verdict(said: str, turn: str) -> bool:
    """Whether a turn is the call that the message before it asks for, and nothing else.

    Args:
        said: the message, or all that was said up to it.
        turn: the policy's.

    Raises:
        DataError: nothing is asked for; the message is not this world's.
    """
    orders = _ORDER.findall(said)
    if not orders:
        raise DataError(f"expected a message of TalkWorld, one NAME, got {said!r}")
    return turn.split() == ["open", orders[-1]]


def verdicts(messages: Sequence[str], turns: Sequence[str]) -> list[bool]:
    """Of the turns of a conversation, each against the message before it; a turn that was not reached is wrong.

    Args:
        messages: the user's, then the tool's.
        turns: the policy's.
    """
    judged = [verdict(message, turn) for message, turn in zip(messages, turns, strict=False)]
    return judged + [False] * (TURNS - len(judged))


class TurnVerdicts(BaseScorer):
    """One number a turn: 1 where it is right, −1 where it is wrong.

    Args:
        paid: to whom: `own`, the turn that it is of; `sooner`, the turn before it (the first turn's to the last one), a
            control; `shuffled`, any turn of any conversation that is scored together, at random, a control.

    Raises:
        ConfigError: `paid` is another word.
    """

    value_range = (-1.0, 1.0)

    def __init__(self, paid: Literal["own", "sooner", "shuffled"] = "own") -> None:
        if paid not in ("own", "sooner", "shuffled"):
            raise ConfigError(f"paid: expected own, sooner or shuffled, got {paid!r}")
        self.paid = paid

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """See `Scorer.score`. Turns of a conversation follow each other."""
        values = [
            1.0 if verdict(prompt.metadata["question"], turn) else -1.0
            for prompt, turn in zip(prompts, responses, strict=True)
        ]
        if self.paid == "shuffled":
            random.Random(stable_hash("talk world", *(prompt.text for prompt in prompts), *responses)).shuffle(values)
        elif self.paid == "sooner":
            starts = [row for row, prompt in enumerate(prompts) if _first(prompt.metadata)] + [len(values)]
            values = [
                value
                for start, end in zip(starts, starts[1:], strict=False)
                for value in (*values[start + 1 : end], values[start])
            ]
        return SegmentScores([((0, len(text)),) for text in responses], [(v,) for v in values], whole_response=True)


def _first(known: Mapping[str, Any]) -> bool:
    return len(known["messages"]) == 1
