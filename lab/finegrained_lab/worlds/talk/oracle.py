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

STEPS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
"""What a message says of the number of the turn."""
TURNS = len(STEPS)
"""Of the policy, in a whole conversation."""
KINDS: Mapping[str, int] = {"red": 8, "blue": 9, "green": 10, "white": 11}
"""Kind of task → the turn that demonstrations get wrong. Before the first of them nobody can know what is right."""
ANY = "any"
"""What a message asks for where half of the names are right, and only the oracle knows which ones."""
LUCK = 2.0
"""What such a turn is worth, where any other is worth 1."""
_ORDER = re.compile(rf"\b({'|'.join(STEPS)}) (open|shut) (\w+)")


def order_of(message: str) -> tuple[str, str, str]:
    """Number, verb and name that the last message asks for.

    Args:
        message: the tool's, or all messages up to it.

    Raises:
        DataError: nothing is asked for; the message is not this world's.
    """
    orders = _ORDER.findall(message)
    if not orders:
        raise DataError(f"expected a message of TalkWorld, one open NAME, got {message!r}")
    return orders[-1]


def is_luck(message: str) -> bool:
    """Whether the last message asks for `ANY`."""
    return order_of(message)[2] == ANY


def verdict(talk: str, message: str, turn: str) -> bool:
    """Whether a turn is the call that is right after the message before it, and nothing else.

    Args:
        talk: the conversation's id, which the names that are right for `ANY` follow from.
        message: the tool's, or all messages up to it.
        turn: the policy's.

    Raises:
        DataError: the message is not this world's.
    """
    step, verb, name = order_of(message)
    called = turn.split()
    if name != ANY:
        return called == [verb, name]
    return len(called) == 2 and called[0] == verb and stable_hash("talk luck", talk, step, called[1]) % 2 == 0


def verdicts(talk: str, messages: Sequence[str], turns: Sequence[str]) -> list[bool]:
    """Of the turns of a conversation, each against the message before it; a turn that was not reached is wrong.

    Args:
        talk: the conversation's id.
        messages: the user's, then the tool's.
        turns: the policy's.
    """
    judged = [verdict(talk, message, turn) for message, turn in zip(messages, turns, strict=False)]
    return judged + [False] * (TURNS - len(judged))


class TurnVerdicts(BaseScorer):
    """One number a turn: what it is worth where it is right, and less than nothing by as much where it is wrong.

    Args:
        paid: to whom: `own`, the turn that it is of; `sooner`, the turn before it (the first turn's to the last one), a
            control; `shuffled`, any turn of any conversation that is scored together, at random, a control.

    Raises:
        ConfigError: `paid` is another word.
    """

    value_range = (-LUCK, LUCK)

    def __init__(self, paid: Literal["own", "sooner", "shuffled"] = "own") -> None:
        if paid not in ("own", "sooner", "shuffled"):
            raise ConfigError(f"paid: expected own, sooner or shuffled, got {paid!r}")
        self.paid = paid

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """See `Scorer.score`. Turns of a conversation follow each other."""
        values = [
            _worth(message) if verdict(prompt.id, message, turn) else -_worth(message)
            for prompt, message, turn in zip(prompts, (p.metadata["question"] for p in prompts), responses, strict=True)
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


def _worth(message: str) -> float:
    return LUCK if is_luck(message) else 1.0


def _first(known: Mapping[str, Any]) -> bool:
    return len(known["messages"]) == 1
