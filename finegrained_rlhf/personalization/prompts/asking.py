"""Asks language models by templates: for what a schema names, or for a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finegrained_rlhf.core.generation.asking import TRIES, ask, complaint
from finegrained_rlhf.core.generation.outcomes import UnreadableReplyError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.personalization.prompts.templates import filled

LONGEST_TEXT = 40_000
"""Most characters of a text that is written, unless a caller says otherwise."""


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
) -> str:
    """A text without white space around it, as the model writes it.

    An empty one, one that is too long or one that is no text is asked for again, in another prompt.

    Args:
        llm: that is asked.
        template: one of `prompts.templates.NAMES`.
        task: as for `filled`.
        data: as for `filled`.
        longest: most characters.
        tries: how often the model is asked.

    Raises:
        ReplyError: no text that can be used.
        FineGrainedError: there is no model or service.
    """
    prompt = filled(template, task, data)
    error = UnreadableReplyError("it was not asked for a text")
    for number in range(tries):
        more = f"\n\n{complaint(str(error), number)} Reply with the text alone." if number else ""
        try:
            return _text(llm.generate(prompt + more).text, longest)
        except UnreadableReplyError as unreadable:
            error = unreadable
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
