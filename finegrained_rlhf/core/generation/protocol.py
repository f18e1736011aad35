"""What a language model is to everything that asks one: a text in, a text out, and what it cost."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from finegrained_rlhf.core.generation.schema import ReplySchema

LONGEST_TEXT = 40_000
"""Most characters of a free text that is taken from a language model, unless a caller takes fewer."""
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Generation:
    """A generated text.

    Attributes:
        text: without the prompt.
        tokens_in: of the prompt, counted by whoever generated.
        tokens_out: of the text, counted likewise.
    """

    text: str
    tokens_in: int
    tokens_out: int


class TextGenerator(Protocol):
    """Generates a text for a prompt. Implementations decode greedily unless they say otherwise."""

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The text for a prompt.

        Args:
            prompt: that says in words what is wanted.
            schema: what the text will be read as. A generator that can hold the model to it does; the text may differ
                all the same, and whoever asks reads it (`core.generation.asking`).

        Raises:
            ReplyError: there is none for this prompt: refused, cut off, or the service failed at it.
            FineGrainedError: there is no model or service; one error after a bounded number of tries.
        """
        ...


class RolePrompt(str):
    """A prompt whose beginning is the developer's and no user's: what a generator may send as the system message.

    Attributes:
        system: the beginning; what follows it are the user's words, and what is said of them.
    """

    system: str = ""

    @classmethod
    def of(cls, system: str, rest: str) -> RolePrompt:
        """The prompt of both."""
        prompt = cls(system + rest)
        prompt.system = system
        return prompt

    def __add__(self, more: str) -> RolePrompt:
        return RolePrompt.of(self.system, str(self)[len(self.system) :] + more)


class StreamingGenerator(TextGenerator, Protocol):
    """A generator that gives a text piece by piece."""

    def stream(self, prompt: str, take: Callable[[str], None]) -> Generation:
        """The text for a prompt, whose pieces `take` is given as they come, from another thread; see `generate`.

        Raises:
            ReplyError: there is none, or it broke off after some pieces.
            FineGrainedError: as for `generate`.
        """
        ...


def streamed(generator: TextGenerator, prompt: str, take: Callable[[str], None] | None) -> Generation:
    """The text of a generator, piece by piece; in one piece where it can give no pieces, and with no `take` in none."""
    if take is not None and hasattr(generator, "stream"):
        return cast(StreamingGenerator, generator).stream(prompt, take)
    made = generator.generate(prompt)
    if take is not None:
        take(made.text)
    return made


def generated(generator: TextGenerator, prompt: str, schema: ReplySchema | None = None) -> Generation:
    """The text of a generator, which is given the schema where it takes one.

    A generator of somebody's own may know prompts alone.

    Args:
        generator: with a `generate(prompt)`, or one that takes the schema too.
        prompt: as for `TextGenerator.generate`.
        schema: as for `TextGenerator.generate`.
    """
    if schema is None or not _takes_schema(type(generator)):
        return generator.generate(prompt)
    return generator.generate(prompt, schema)


@cache
def _takes_schema(kind: Any) -> bool:
    parameters = list(inspect.signature(kind.generate).parameters.values())[2:]  # after self and the prompt
    named = (parameter.name == "schema" for parameter in parameters)
    return any(named) or any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)


def words_and_marks(text: str) -> list[str]:
    r"""Words and marks of a text (`\w+|[^\w\s]`), as spelled: what is counted where there is no tokenizer."""
    return _WORD.findall(text)
