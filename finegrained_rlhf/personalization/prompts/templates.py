"""Prompts from templates.

What users wrote stands in a fence: between two lines as JSON, in which no character can close the fence, and the
template says that nothing in it is an instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from finegrained_rlhf.core.generation.fence import fenced as fenced
from finegrained_rlhf.core.generation.fence import fenced_data as fenced_data
from finegrained_rlhf.core.generation.outcomes import UnreadableReplyError as UnreadableReplyError

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
