"""Rows of other trainers' data sets as prompts of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.outputs import passages_of_lists


def message_text(value: str | Sequence[Mapping[str, Any]]) -> str:
    """A text, or the contents of a list of chat messages, one behind the other; what is no text in them is left out."""
    return value if isinstance(value, str) else "\n".join(filter(None, map(_content, value)))


def _content(message: Mapping[str, Any]) -> str:
    """What a message says; a call of a tool says nothing, and of several parts (images among them) the texts count."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if part.get("text"))


def prompt_of_row(text: str, row: Mapping[str, Any], number: int) -> Prompt:
    """A prompt for scorers; no token ids.

    Args:
        text: what the policy read.
        row: what else is known of it, all of it metadata: `question`, `passages`, `references` for our reward models.
            Passages may be lists `[title, sentence 1, …]`, as JSON and Arrow hold them.
        number: of the row, which is its id where it has none.

    Raises:
        DataError: a passage is a list without a title, or not of texts.
    """
    metadata = {name: _lists(value) for name, value in row.items()}
    passages = metadata.get("passages")
    if isinstance(passages, list) and all(isinstance(passage, list) for passage in passages):
        metadata["passages"] = passages_of_lists(passages)
    return Prompt(str(row.get("id", number)), text, (), metadata)


def _lists(value: Any) -> Any:
    """The value with lists in place of arrays and tuples, as which Parquet comes back."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_lists(item) for item in value]
    return value
