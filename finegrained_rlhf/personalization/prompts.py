"""Asks language models by templates: for what a schema names, or for a text.

What users wrote stands in a fence: between two lines as JSON, in which no character can close the fence, and the
template says that nothing in it is an instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from finegrained_rlhf.core.generation.asking import TRIES, ask, complaint
from finegrained_rlhf.core.generation.asking import fenced as fenced
from finegrained_rlhf.core.generation.asking import fenced_data as fenced_data
from finegrained_rlhf.core.generation.outcomes import UnreadableReplyError as UnreadableReplyError
from finegrained_rlhf.core.generation.protocol import LONGEST_TEXT, RolePrompt, TextGenerator, streamed
from finegrained_rlhf.core.generation.schema import ReplySchema

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
    return Template((files(__package__) / "templates" / f"{name}.txt").read_text(encoding="utf-8").strip())


def filled(name: str, task: str, data: Mapping[str, Any]) -> RolePrompt:
    """The prompt of a template; the data stands behind all that the system message may say.

    Args:
        name: one of `NAMES`.
        task: what is to be written, in the words of the application's developer.
        data: all that comes from users and from earlier replies.
    """
    said, _, behind = _template(name).template.partition("$data")
    return RolePrompt.of(Template(said).substitute(task=task), fenced(data) + behind)


def ask_for(
    llm: TextGenerator, template: str, task: str, data: Mapping[str, Any], schema: ReplySchema, tries: int = TRIES
) -> Mapping[str, Any]:
    """The fields of a reply, by name.

    Args:
        llm: that is asked.
        template: one of `prompts.templates.NAMES`.
        task: as for `filled`.
        data: as for `filled`.
        schema: what the reply must hold; a reply that it cannot read is asked for again.
        tries: how often the model is asked.

    Raises:
        ReplyError: no reply can be used.
        FineGrainedError: there is no model or service.
    """
    return ask(llm, filled(template, task, data), schema, tries).read()


def ask_for_text(
    llm: TextGenerator,
    template: str,
    task: str,
    data: Mapping[str, Any],
    longest: int = LONGEST_TEXT,
    tries: int = TRIES,
    on_text: Callable[[str], None] | None = None,
) -> str:
    """A text without white space around it, as the model writes it.

    An empty one, one that is too long or one that is no text is asked for again, in another prompt.

    Args:
        llm: that is asked.
        template: one of `prompts.templates.NAMES`.
        task: as for `filled`.
        data: as for `filled`.
        longest: most characters.
        tries: how often the model is asked; once where it has given pieces of a text.
        on_text: is given the text piece by piece, as it comes.

    Raises:
        ReplyError: no text that can be used.
        FineGrainedError: there is no model or service.
    """
    prompt = filled(template, task, data)
    error = UnreadableReplyError("it was not asked for a text")
    for number in range(tries):
        more = f"\n\n{complaint(str(error), number)} Reply with the text alone." if number else ""
        try:
            return _text(streamed(llm, prompt + more, on_text).text, longest)
        except UnreadableReplyError as unreadable:
            error = unreadable
            if on_text is not None and (unreadable.reply or "").strip():
                break  # what was shown cannot be taken back
    raise error


def _text(reply: str, longest: int) -> str:
    text = reply.strip()
    if not text:
        raise UnreadableReplyError("expected a text, got an empty reply of a language model", reply)
    if len(text) > longest:
        raise UnreadableReplyError(
            f"{len(text)} characters, more than {longest}, in a reply of a language model", reply
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnreadableReplyError("half a surrogate pair, in a reply of a language model", reply) from None
    return text
