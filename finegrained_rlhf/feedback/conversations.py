"""Conversations in prompt files: who said what, in the format that trainers of chat models share.

A message is `{role, content}`. A row holds one conversation as `messages` (its last assistant's turn is the answer), or
as `prompt` with or without a `completion`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: `system`, `user`, `assistant`, or what else the model's chat template knows.
        content: what was said.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        require_text(self.role, "role")
        require_text(self.content, "content", empty=True)


@dataclass(frozen=True)
class Conversation:
    """What a policy is to answer, and how it was answered.

    Attributes:
        messages: at least one; the last is not the assistant's.
        answers: of the assistant; empty where there is none.
    """

    messages: tuple[Message, ...]
    answers: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """What was asked last."""
        return self.messages[-1].content

    @property
    def text(self) -> str:
        """All that was said, without roles."""
        return "\n".join(message.content for message in self.messages)


def read_messages(value: Any, field: str) -> tuple[Message, ...]:
    """Messages from `[{role, content}, …]`; a content may be text or a list of `{type: text, text}` parts.

    Raises:
        DataError: naming the field.
    """
    messages = []
    for number, item in enumerate(as_list(value, field)):
        place = f"{field}[{number}]"
        row = as_object(item, place)
        role = require_text(get_field(row, "role", f"{place}."), f"{place}.role")
        messages.append(Message(role, _content(get_field(row, "content", f"{place}."), f"{place}.content")))
    require(bool(messages), "expected at least one message, got none", field)
    return tuple(messages)


def _content(value: Any, field: str) -> str:
    if not isinstance(value, list):
        return require_text(value, field, empty=True)
    texts = []
    for number, item in enumerate(value):
        part, place = as_object(item, f"{field}[{number}]"), f"{field}[{number}]"
        require(part.get("type") == "text", f"expected a part of type text, got {part.get('type')!r}", f"{place}.type")
        texts.append(require_text(get_field(part, "text", f"{place}."), f"{place}.text", empty=True))
    return "".join(texts)


def conversation_of(row: Mapping[str, Any]) -> Conversation | None:
    """The conversation of a row; None where it holds none.

    Raises:
        DataError: naming the field.
    """
    if row.get("messages") is not None:
        return _split(read_messages(row["messages"], "messages"))
    if not isinstance(row.get("prompt"), list):
        return None
    messages = read_messages(row["prompt"], "prompt")
    require(messages[-1].role != ASSISTANT, "ends with the assistant's turn, expected what it answers", "prompt")
    return Conversation(messages, answers_of_completion(row))


def answers_of_completion(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The answer that a row holds as `completion`, a text or one assistant's message; empty where there is none."""
    value = row.get("completion")
    if value is None:
        return ()
    if isinstance(value, str):
        return (require_text(value, "completion"),)
    messages = read_messages(value, "completion")
    alone = len(messages) == 1 and messages[0].role == ASSISTANT
    require(alone, "expected a text or one message of the assistant", "completion")
    return (require_text(messages[0].content, "completion[0].content"),)


def _split(messages: Sequence[Message]) -> Conversation:
    """A whole conversation: what stands before the assistant's last turn is asked."""
    answered = messages[-1].role == ASSISTANT
    prompt = tuple(messages[:-1] if answered else messages)
    require(bool(prompt), "expected a message before the assistant's answer", "messages")
    require(prompt[-1].role != ASSISTANT, "two turns of the assistant follow each other", "messages")
    if not answered:
        return Conversation(prompt)
    return Conversation(prompt, (require_text(messages[-1].content, f"messages[{len(prompt)}].content"),))
