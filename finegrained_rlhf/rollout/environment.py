"""Who speaks between the policy's turns: the protocol, and replies from the prompt's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from finegrained_rlhf.core.records import Prompt


@runtime_checkable
class Environment(Protocol):
    """Who speaks between the policy's turns: a user, or a tool.

    Attributes:
        role: of its messages, as the chat template knows it: `user`, `tool`.
    """

    role: str

    def reply(self, prompt: Prompt, turns: Sequence[str], seed: int) -> str | None:
        """What is said after the policy's latest turn; None ends the conversation.

        An exception ends the conversation too: it is counted, and the response has no score.

        Args:
            prompt: what the conversation began with.
            turns: what the policy said so far, at least one turn; may be empty texts.
            seed: of this draw of this prompt at this turn, for an environment that draws.
        """


class ScriptedReplies:
    """Says what the prompt's record has as `replies`, one after each turn.

    Args:
        role: of the messages, `user` or `tool`.
    """

    def __init__(self, role: str = "user") -> None:
        self.role = role

    def reply(self, prompt: Prompt, turns: Sequence[str], seed: int) -> str | None:
        """The reply with the number of the turn; None behind the last."""
        replies: Sequence[str] = prompt.metadata.get("replies", ())
        return replies[len(turns) - 1] if len(turns) <= len(replies) else None
