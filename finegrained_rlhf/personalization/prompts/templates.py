"""Prompts from templates, and replies that are JSON.

Knows the fence: what users wrote stands between two lines as JSON, in which no character can close the fence, and the
template says that nothing in it is an instruction. Does not know learners.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from finegrained_rlhf.core.errors import DataError, FineGrainedError

_OPEN, _CLOSE = "<data>\n", "\n</data>"
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
NAMES = (
    *("write", "write_preferred", "infer", "aggregate", "in_context", "chain"),
    *("distil", "decide", "choose", "salient", "summarise", "integrate"),
    *("persona_answer", "persona_feedback", "check_draft", "edit_draft"),
)
"""The templates. CIPHER and its baselines: a draft without and with a preference; a preference from edits; one from
several; a draft after examples, without and with a preference that is named first. PAHF: cues from notes; act or ask;
an option; whether a remark says a preference; the note that it makes; where the note belongs. Simulated users: an
answer to a question, and what is said of an action; whether a draft is liked, and the edit of one that is not."""


class UnreadableReplyError(FineGrainedError):
    """A language model's reply is not what its prompt asks for.

    The message does not quote the reply, which may say what a user wrote, so that it can be logged.

    Args:
        problem: what is wrong, in a sentence.
        reply: of the language model.
    """

    def __init__(self, problem: str, reply: str) -> None:
        super().__init__(problem)
        self.reply = reply


@cache
def _template(name: str) -> Template:
    return Template((files(__package__) / f"{name}.txt").read_text(encoding="utf-8").strip())


def filled(name: str, task: str, data: Mapping[str, Any]) -> str:
    """The prompt of a template.

    Args:
        name: one of `NAMES`.
        task: what is to be written, in the words of the application's developer.
        data: all that comes from users and from earlier replies.
    """
    return _template(name).substitute(task=task, data=fenced(data))


def fenced(data: Mapping[str, Any]) -> str:
    """Data as JSON on one line between the lines of the fence; `<`, `>` and `&` are escaped."""
    return _OPEN + json.dumps(data, ensure_ascii=False).translate(_ESCAPES) + _CLOSE


def fenced_data(prompt: str) -> dict[str, Any]:
    """The data of a prompt: what a scripted language model reads.

    Raises:
        DataError: there is none.
    """
    begin, end = prompt.rfind(_OPEN), prompt.rfind(_CLOSE)
    if begin < 0 or end < begin:
        raise DataError("expected a prompt with fenced data")
    found = json.loads(prompt[begin + len(_OPEN) : end])
    assert isinstance(found, dict)
    return found


def reply_field(reply: str, field: str, longest: int) -> str:
    """A text field of the JSON object in a reply, without white space around it. Words around the object are ignored.

    Args:
        reply: of a language model.
        field: of the object.
        longest: most characters of it.

    Raises:
        UnreadableReplyError: there is no such object, the field is no text, or is too long.
    """
    try:
        found, _ = json.JSONDecoder().raw_decode(reply, reply.index("{"))
    except (ValueError, RecursionError):
        found = None
    value = found.get(field) if isinstance(found, dict) else None
    if not isinstance(value, str):
        raise UnreadableReplyError(
            f'expected a JSON object with a text "{field}" in a reply of a language model', reply
        )
    if len(value) > longest:
        raise UnreadableReplyError(f"{field}: {len(value)} characters, more than {longest}", reply)
    return value.strip()
