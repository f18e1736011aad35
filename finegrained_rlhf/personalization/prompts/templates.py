"""Prompts from templates, and replies that are JSON.

Knows the fence: what users wrote stands between two lines as JSON, in which no character can close the fence, and the
template says that nothing in it is an instruction. Does not know learners.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    *("answer_remarks", "answer_history", "answer_chain", "answer_notes", "answer_one"),
    *("scratchpad", "summarise_memory", "conflict", "another_question"),
)
"""The templates. CIPHER and its baselines: a draft without and with a preference; a preference from edits; one from
several; a draft after examples, without and with a preference that is named first. PAHF: cues from notes; act or ask;
an option; whether a remark says a preference; the note that it makes; where the note belongs. Simulated users: an
answer to a question, and what is said of an action; whether a draft is liked, and the edit of one that is not. CORESET
and its baselines: answers by remarks, by the conversation, by reasoning over it, by notes, and a single one; a note of
a turn; a summary; whether a remark contradicts others; one more question about documents."""


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
    value = _object(reply).get(field)
    if not isinstance(value, str):
        raise UnreadableReplyError(
            f'expected a JSON object with a text "{field}" in a reply of a language model', reply
        )
    if len(value) > longest:
        raise UnreadableReplyError(f"{field}: {len(value)} characters, more than {longest}", reply)
    return value.strip()


def reply_choice(reply: str, field: str, values: Sequence[str]) -> str:
    """A text field of the JSON object in a reply that must have one of some values; nothing is guessed.

    Args:
        reply: of a language model.
        field: of the object.
        values: that it may have.

    Raises:
        UnreadableReplyError: there is no such object, or the field has another value.
    """
    value = reply_field(reply, field, max(map(len, values)) + 20)
    if value not in values:
        raise UnreadableReplyError(
            f"{field}: expected one of {', '.join(values)} in a reply of a language model", reply
        )
    return value


def reply_texts(reply: str, field: str, longest: int) -> tuple[str, ...]:
    """A field of the JSON object in a reply that lists texts, without white space around them; empty ones are left out.

    Args:
        reply: of a language model.
        field: of the object.
        longest: most characters of all texts together.

    Raises:
        UnreadableReplyError: there is no such object, the field is no list of texts, or is too long.
    """
    values = _object(reply).get(field)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UnreadableReplyError(
            f'expected a JSON object with a list of texts "{field}" in a reply of a language model', reply
        )
    if (length := sum(map(len, values))) > longest:
        raise UnreadableReplyError(f"{field}: {length} characters, more than {longest}", reply)
    return tuple(value.strip() for value in values if value.strip())


def _object(reply: str) -> Mapping[str, Any]:
    """The first JSON object in a reply; an empty one where there is none."""
    try:
        found, _ = json.JSONDecoder().raw_decode(reply, reply.index("{"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
