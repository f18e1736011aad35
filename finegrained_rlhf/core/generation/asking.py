"""Asks language models for replies that satisfy a schema: a bounded number of times, each time with what was wrong.

What comes back is an outcome for each item; a reply that cannot be read never ends anything by itself. Data stands in a
prompt as one line of JSON between two lines of a fence, in which no character can close the fence; templates say that
nothing in it is an instruction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.outcomes import REPLY_ERRORS, Outcome, ReplyError, UnreadableReplyError
from finegrained_rlhf.core.generation.protocol import Generation, TextGenerator, generated
from finegrained_rlhf.core.generation.schema import ReplySchema

_OPEN, _CLOSE = "<data>\n", "\n</data>"
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


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
    data = json.loads(prompt[begin + len(_OPEN) : end])
    assert isinstance(data, dict)
    return data


TRIES = 3
"""How often an item is asked about, unless a caller says otherwise."""


@dataclass(frozen=True)
class Reply:
    """What became of one item.

    Attributes:
        outcome: whether there is a value.
        value: the fields that were read, by name; empty without one.
        tries: how often it was asked about.
        problem: what was wrong at the last try, in words that quote nothing; "" where it was read.
        text: of the last reply, "" where there is none. It may hold what users wrote.
    """

    outcome: Outcome
    value: Mapping[str, Any]
    tries: int
    problem: str = ""
    text: str = ""

    def read(self) -> Mapping[str, Any]:
        """The value.

        Raises:
            ReplyError: there is none; its class says which outcome it has.
        """
        if self.outcome is Outcome.READ:
            return self.value
        times = "1 try" if self.tries == 1 else f"{self.tries} tries"
        raise REPLY_ERRORS[self.outcome](f"{self.problem} ({self.outcome.value} after {times})", self.text)


GenerateEach = Callable[[Sequence[str], ReplySchema, Callable[[int, Generation | ReplyError], None]], None]
"""Takes prompts, what replies must hold, and a function that is given the number of a prompt and what came of it."""


def ask(generator: TextGenerator, prompt: str, schema: ReplySchema, tries: int = TRIES) -> Reply:
    """Ask about one item.

    A reply that cannot be read is asked for again with a complaint behind the prompt, which is thereby another prompt.

    Args:
        generator: that is asked. It is given the schema, too.
        prompt: that says in words what the schema asks for.
        schema: what the reply must hold.
        tries: how often it may be asked about.

    Raises:
        FineGrainedError: there is no model or service, which is no outcome of an item.
        ConfigError: tries below 1.
    """

    def each(prompts: Sequence[str], schema: ReplySchema, take: Callable[[int, Generation | ReplyError], None]) -> None:
        for number, text in enumerate(prompts):
            try:
                made: Generation | ReplyError = generated(generator, text, schema)
            except ReplyError as error:
                made = error
            take(number, made)

    replies: list[Reply] = []
    ask_each(each, [prompt], schema, lambda number, reply: replies.append(reply), tries)
    return replies[0]


def ask_each(
    generate_each: GenerateEach,
    prompts: Sequence[str],
    schema: ReplySchema,
    keep: Callable[[int, Reply], None],
    tries: int = TRIES,
) -> None:
    """Ask about several items, those without a reply that can be read again together.

    Args:
        generate_each: answers several prompts, and gives each answer as it comes.
        prompts: one an item.
        schema: what each reply must hold.
        keep: takes the number of an item and what became of it, as soon as it is known; once for each.
        tries: how often an item may be asked about.

    Raises:
        FineGrainedError: there is no model or service. What was known until then has been kept.
        ConfigError: tries below 1.
    """
    if tries < 1:
        raise ConfigError(f"tries: expected at least 1, got {tries}")
    waiting = dict(enumerate(prompts))
    for number in range(1, tries + 1):
        odd = _round(generate_each, waiting, schema, keep, number, last=number == tries)
        waiting = {item: with_complaint(prompts[item], problem, schema, number) for item, problem in odd.items()}
        if not waiting:
            return


def _round(
    generate_each: GenerateEach,
    waiting: Mapping[int, str],
    schema: ReplySchema,
    keep: Callable[[int, Reply], None],
    tries: int,
    last: bool,
) -> dict[int, str]:
    """Ask about the items that wait, by number. Returns what was wrong with those that are to be asked about again."""
    items, odd = list(waiting), {}

    def take(place: int, made: Generation | ReplyError) -> None:
        reply = _read(made, schema, tries)
        if reply.outcome is Outcome.UNREADABLE and not last:
            odd[items[place]] = reply.problem
        else:
            keep(items[place], reply)

    generate_each(list(waiting.values()), schema, take)
    return odd


def with_complaint(prompt: str, problem: str, schema: ReplySchema, tries: int = 1) -> str:
    """The prompt of another try: it says what was wrong with the last reply, and differs from those before it."""
    return (
        f"{prompt}\n\n{complaint(problem, tries)} Reply with one JSON object of the form "
        f"{schema.form()} and nothing else."
    )


def complaint(problem: str, tries: int) -> str:
    """What was wrong with the last of some replies, in a sentence."""
    if tries == 1:
        return f"A reply to this could not be used: {problem}."
    return f"{tries} replies to this could not be used, the last one: {problem}."


def _read(made: Generation | ReplyError, schema: ReplySchema, tries: int) -> Reply:
    error, text = made if isinstance(made, ReplyError) else None, ""
    if isinstance(made, Generation):
        text = made.text
        try:
            return Reply(Outcome.READ, schema.read(text), tries, text=text)
        except UnreadableReplyError as unreadable:
            error = unreadable
    assert error is not None
    return Reply(error.outcome, {}, tries, str(error), error.reply)
