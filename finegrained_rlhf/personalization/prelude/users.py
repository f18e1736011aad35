"""A user in two stages whom a language model plays: would they edit a draft? and if so, the edit.

Knows drafts and true preferences. Does not know agents: a user's language model is never an agent's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.personalization.prompts.templates import UnreadableReplyError, filled, reply_field

ROLE = "You play a reader who has a taste of their own, and who was given a draft of a text."


class EditingUser(Protocol):
    """A simulated user, who knows the true preference."""

    def edit(self, context: str, preference: str, draft: str) -> str:
        """What the user makes of a draft; the draft itself where nothing is to be changed."""
        ...


@dataclass(frozen=True)
class ModelEditor:
    """A language model that edits in two stages (Gao et al. 2024, section 4.1).

    First it is asked whether the draft is as the user likes texts; only where it says no, for the edit. Asked for an
    edit at once, a language model changes every draft.

    Attributes:
        llm: the user's own.
        tries: times that each stage is asked while its reply cannot be read; the last one's error is the run's.
        compat: read the first stage as the released code does: a "yes" anywhere in the reply leaves the draft as it is.
    """

    llm: TextGenerator
    tries: int = 3
    compat: bool = False

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ConfigError(f"tries: expected at least 1, got {self.tries}")

    def edit(self, context: str, preference: str, draft: str) -> str:
        """The draft, or what the user makes of it.

        Raises:
            UnreadableReplyError: no reply of `tries` could be read.
            FineGrainedError: the language model gives no answer: filtered, cut off, or out of reach. It is not asked
                again.
        """
        data = {"context": context, "draft": draft, "preference": preference}
        if self._asked("check_draft", data, self._likes):
            return draft
        return self._asked("edit_draft", {"draft": draft, "preference": preference}, _edited)

    def _asked(self, template: str, data: dict[str, Any], read: Callable[[str], Any]) -> Any:
        for unread in range(self.tries):
            more = {"unreadable_replies": unread} if unread else {}  # another prompt: kept answers are not given again
            reply = self.llm.generate(filled(template, ROLE, {**data, **more})).text
            try:
                return read(reply)
            except UnreadableReplyError:
                if unread + 1 == self.tries:
                    raise
        raise AssertionError("tries is at least 1")

    def _likes(self, reply: str) -> bool:
        if self.compat:
            return "yes" in reply.lower()
        answer = reply_field(reply, "satisfied", 20).lower()
        if answer not in ("yes", "no"):
            raise UnreadableReplyError('satisfied: expected "yes" or "no" in a reply of the user\'s model', reply)
        return answer == "yes"


def _edited(reply: str) -> str:
    text = reply.strip()
    if not text:
        raise UnreadableReplyError("expected an edited text in a reply of the user's model", reply)
    return text
