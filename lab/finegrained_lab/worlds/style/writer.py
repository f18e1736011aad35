"""The language model of StyleWorld: writes in the style that its prompt says, and sees what style an edit wants.

Knows prompts of `personalization.prompts` by their data. Does not know the truth: not the source of a context, nor what
its reader prefers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from finegrained_lab.worlds.style.styles import (
    DIMENSIONS,
    PLAIN,
    Style,
    bare_sentences,
    described,
    description,
    majority,
    rendered,
    style_of,
)
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.asking import fenced_data
from finegrained_rlhf.core.generation.protocol import Generation, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.core.markers import Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash


@dataclass(frozen=True)
class StyleWriter(Settings):
    """A scripted language model. Its errors are a function of the seed and the prompt: the same prompt, the same text.

    Of an edit it names every value that is not plain and that the draft did not have, and of those that the draft had a
    share. Several edits or descriptions are combined value by value, as most of them have it.

    Attributes:
        slips: share of dimensions in which a text does not follow what it was written by.
        misreads: share of dimensions of an edit that are taken for another value.
        notices: share of the values of an edited text that are seen although the draft had them.
        seed: of its errors.
    """

    slips: Annotated[float, at_least(0.0), at_most(1.0)] = 0.02
    misreads: Annotated[float, at_least(0.0), at_most(1.0)] = 0.05
    notices: Annotated[float, at_least(0.0), at_most(1.0)] = 0.8
    seed: Seed = 0

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """A text, or a preference as JSON. Tokens are words and marks.

        Raises:
            DataError: a prompt without fenced data.
        """
        text = self._reply(prompt, fenced_data(prompt))
        return Generation(text, len(words_and_marks(prompt)), len(words_and_marks(text)))

    def _reply(self, prompt: str, data: Mapping[str, Any]) -> str:
        if "edits" in data:
            return json.dumps({"preference": description(self._noticed(prompt, data["edits"]))})
        if "preferences" in data:
            styles = [{**PLAIN, **described(preference)} for preference in data["preferences"]]
            return json.dumps({"preference": description(majority(styles))})
        if "examples" not in data:
            return self._text(prompt, data["context"], {**PLAIN, **described(data.get("preference", ""))})
        style = self._noticed(prompt, data["examples"])
        text = self._text(prompt, data["context"], style)
        wants_preference = '"text": "..."' in prompt
        return json.dumps({"preference": description(style), "text": text}) if wants_preference else text

    def _text(self, prompt: str, context: str, style: Style) -> str:
        followed = {
            dimension: self._other(value, prompt, "slip", dimension)
            if self._happens(self.slips, prompt, "slip", dimension)
            else value
            for dimension, value in style.items()
        }
        return rendered(bare_sentences(context), followed)

    def _noticed(self, prompt: str, pairs: Sequence[Mapping[str, str]]) -> dict[str, str]:
        """The style that edits want, the latest first where they are of two minds."""
        return majority(self._wanted(prompt, str(i), pair) for i, pair in reversed(list(enumerate(pairs))))

    def _wanted(self, prompt: str, number: str, pair: Mapping[str, str]) -> Style:
        before, after = style_of(pair["draft"]), style_of(pair["edited"])
        wanted = dict(after)
        for dimension, plain in PLAIN.items():
            kept = before[dimension] == after[dimension]
            if kept and not self._happens(self.notices, prompt, "notice", number, dimension):
                wanted[dimension] = plain
            if self._happens(self.misreads, prompt, "misread", number, dimension):
                wanted[dimension] = self._other(after[dimension], prompt, "misread", number, dimension)
        return wanted

    def _happens(self, share: float, *what: str) -> bool:
        return stable_hash(self.seed, "happens", *what) / 2**63 < share

    def _other(self, value: str, prompt: str, *what: str) -> str:
        """Another value of the same dimension, the last part of `what`."""
        others = [other for other in DIMENSIONS[what[-1]] if other != value]
        return others[stable_hash(self.seed, "other", prompt, *what) % len(others)]
