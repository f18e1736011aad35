"""A language model of which some replies have another form than they were asked for, or are none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from finegrained_rlhf.core.generation.outcomes import RefusedReplyError
from finegrained_rlhf.core.generation.protocol import Generation, TextGenerator
from finegrained_rlhf.core.generation.schema import ReplySchema


def _refused(reply: dict[str, Any]) -> str:
    raise RefusedReplyError("an answer that ended by 'content_filter'")


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


FORMS: dict[str, Callable[[dict[str, Any]], str]] = {
    "an integer": lambda reply: json.dumps({key: _number(value) for key, value in reply.items()}),
    "words behind": lambda reply: json.dumps({key: f"{value}." for key, value in reply.items()}),
    "another case": lambda reply: json.dumps({key: str(value).capitalize() for key, value in reply.items()}),
    "a fence": lambda reply: f"```json\n{json.dumps(reply)}\n```",
    "thinking": lambda reply: f"<think>options {{tea, cola}}</think>{json.dumps(reply)}",
    "a brace before": lambda reply: f"The set {{1,2}} is open. {json.dumps(reply)}",
    "two objects": lambda reply: json.dumps({"reason": "x"}) + "\n" + json.dumps(reply),
    "a comma too many": lambda reply: json.dumps(reply)[:-1] + ",}",
    "single quotes": repr,
    "the bare value": lambda reply: str(next(iter(reply.values()))),
    "a list": lambda reply: json.dumps({key: [value] for key, value in reply.items()}),
    "null": lambda reply: json.dumps(dict.fromkeys(reply)),
    "half an object": lambda reply: json.dumps(reply)[:-1],
    "words": lambda reply: "I am afraid that I cannot say.",
    "nothing": lambda reply: "",
    "half a character": lambda reply: json.dumps(dict.fromkeys(reply, "\ud83d")),
    "refused": _refused,
}
"""What a reply may look like; the last six cannot be used for every prompt."""


class OddGenerator:
    """Another generator; every so manieth reply has the next one of `FORMS`.

    Args:
        generator: that is asked.
        every: one in so many calls is odd.
    """

    identity = "odd"

    def __init__(self, generator: TextGenerator, every: int) -> None:
        self.generator, self.every = generator, every
        self.calls, self.forms = 0, Counter[str]()

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The other one's text, or what has become of it."""
        self.calls += 1
        made = self.generator.generate(prompt, schema)
        if self.calls % self.every:
            return made
        form = list(FORMS)[self.forms.total() % len(FORMS)]
        self.forms[form] += 1
        try:
            reply = json.loads(made.text)
        except ValueError:  # a free text
            return replace(made, text="") if form == "nothing" else made
        return replace(made, text=FORMS[form](reply))


class NoGenerator:
    """Never gives a reply that can be used, where there is anything to be read."""

    identity = "odd"

    def __init__(self) -> None:
        self.calls = 0

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """No JSON."""
        self.calls += 1
        return Generation("Sorry.", 1, 1)
