"""A user in two stages whom a language model plays: would they edit a draft? and if so, the edit.

A user's language model is never an agent's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.schema import Choice, ReplySchema
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.personalization.prompts import ask_for, ask_for_text

_SATISFIED = ReplySchema({"satisfied": Choice(("yes", "no"))})
ROLE = "You play a reader who has a taste of their own, and who was given a draft of a text."


class EditingUser(Protocol):
    """A simulated user, who knows the true preference."""

    def edit(self, context: str, preference: str, draft: str) -> str:
        """What the user makes of a draft; the draft itself where nothing is to be changed."""
        ...


@dataclass(frozen=True)
class ModelEditor(Settings):
    """A language model that edits in two stages (Gao et al. 2024, section 4.1).

    First it is asked whether the draft is as the user likes texts; only where it says no, for the edit. Asked for an
    edit at once, a language model changes every draft.

    Attributes:
        llm: the user's own.
        tries: times that each stage is asked while its reply cannot be read.
        compat: read the first stage as the released code does: a "yes" anywhere in the reply leaves the draft as it is.
    """

    llm: TextGenerator
    tries: Annotated[int, at_least(1)] = 3
    compat: bool = False

    def edit(self, context: str, preference: str, draft: str) -> str:
        """The draft, or what the user makes of it.

        Raises:
            ReplyError: no reply of `tries` could be read, or the language model will not answer.
            FineGrainedError: it is out of reach.
        """
        data = {"context": context, "draft": draft, "preference": preference}
        if self._likes(data):
            return draft
        return ask_for_text(self.llm, "edit_draft", ROLE, {"draft": draft, "preference": preference}, tries=self.tries)

    def _likes(self, data: Mapping[str, str]) -> bool:
        if self.compat:
            return "yes" in ask_for_text(self.llm, "check_draft", ROLE, data, tries=self.tries).lower()
        return ask_for(self.llm, "check_draft", ROLE, data, _SATISFIED, self.tries)["satisfied"] == "yes"
