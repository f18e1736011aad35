"""Events of a user that were not learnt from: listed, and learnt from again: what `finegrained catch-up` runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.personalization.learners.base import LEARN_TRIES, TASK, MemoryAgent
from finegrained_rlhf.personalization.learners.conversation import QUESTION_TASK
from finegrained_rlhf.personalization.learners.coreset import (
    CONVERSATION_AGENTS,
    ConversationSettings,
    make_conversation_agent,
)
from finegrained_rlhf.personalization.learners.pahf import CHOICE_TASK, Pahf
from finegrained_rlhf.personalization.learners.prelude import AgentSettings, check_agent, make_agent
from finegrained_rlhf.personalization.retrieval import ContextEncoder
from finegrained_rlhf.personalization.store.opening import open_memory
from finegrained_rlhf.personalization.store.protocol import Event, MemoryStore
from finegrained_rlhf.text.tables import markdown_table

PAHF = "pahf"


@dataclass(frozen=True)
class CatchUp(Settings):
    """List what a user did or said that was not learnt from, and learn from it where a language model is given.

    Attributes:
        memory: FILE of a `UserMemory`, or `postgresql://…`.
        user: whose memory, by name.
        agent: the agent that the user has: `cipher_5` and the other names of `finegrained run-prelude`, `pahf`, or a
            name of `finegrained run-coreset`. It learns from the kinds of events that it writes.
        llm: its language model; None only lists.
        encoder: its encoder; None is words.
        task: its task; None is what the agent does unless it is told otherwise.
        tries: after so many in vain an event is set aside (`learn_tries` of an agent).
        again: learn from those that were set aside, too.
    """

    every_process: ClassVar[bool] = False

    memory: str
    user: str
    agent: str | None = None
    llm: TextGenerator | None = None
    encoder: ContextEncoder | None = None
    task: str | None = None
    tries: Annotated[int, at_least(1)] = LEARN_TRIES
    again: bool = True

    def __post_init__(self) -> None:
        if self.llm is not None and self.agent is None:
            raise ConfigError(
                "agent: expected the name of the agent that is to learn with llm, such as cipher_5 or pahf"
            )
        if self.agent is not None:
            check_agent(self.agent, PAHF, *CONVERSATION_AGENTS, key="agent")

    def run(self) -> dict[str, int]:
        """Learn, then print what is left, an event a line.

        Returns:
            `learnt`: from how many events; `waiting` and `set_aside`: how many are left.

        Raises:
            DataError: there is no such memory or no such user.
            StoreError: the memory cannot be read.
            FineGrainedError: the language model is out of reach.
        """
        memory = open_memory(self.memory)
        try:
            handle = memory.known(self.user)
            if handle is None:
                raise DataError("there is no such user in the memory", field="user")
            learnt = 0
            if self.llm is not None:
                learnt = self._agent(memory, self.llm).catch_up(self.user, self.again)
            left = handle.pending()
        finally:
            memory.close()
        rows = [self._row(event) for event in left]
        if rows:
            print(markdown_table(rows, list(rows[0])))
        aside = sum(event.tries >= self.tries for event in left)
        counts = {"learnt": learnt, "waiting": len(left) - aside, "set_aside": aside}
        print(f"learnt from {learnt} events; {counts['waiting']} wait, {aside} are set aside")
        return counts

    def _row(self, event: Event) -> dict[str, Any]:
        at = "" if event.at is None else datetime.fromtimestamp(event.at, UTC).isoformat(" ", "seconds")
        return {
            "event": event.id,
            "kind": json.dumps(event.kind)[1:-1],
            "key": json.dumps(event.key)[1:-1],
            "recorded": at,
            "tries": event.tries,
            "state": "set aside" if event.tries >= self.tries else "waits",
        }

    def _agent(self, memory: MemoryStore, llm: TextGenerator) -> MemoryAgent:
        """The agent, which only learns: whatever it needs to act alone is not there."""
        assert self.agent is not None
        encoder, name = self.encoder, self.agent
        agent: MemoryAgent
        if name == PAHF:
            return Pahf(memory, llm, encoder=encoder, task=self.task or CHOICE_TASK, learn_tries=self.tries)
        if name in CONVERSATION_AGENTS:
            settings = ConversationSettings(encoder=encoder, task=self.task or QUESTION_TASK)
            agent = make_conversation_agent(name, memory, llm, lambda key: (), settings)
        else:
            own = AgentSettings(encoder=encoder, task=self.task or TASK)
            agent = make_agent(name, memory, llm, lambda context: "", own)
        agent.learn_tries = self.tries
        return agent
