"""CIPHER with a small model as far as it carries: the model chooses which preference an edit shows, a script writes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from finegrained_lab.experiments.personalization.choices.items import (
    ChoiceItem,
    PromptFormat,
    choice_prompt,
    draw_groups,
    preference_item,
    shuffled_answers,
)
from finegrained_lab.worlds.style.writer import StyleWriter
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.asking import fenced_data
from finegrained_rlhf.core.generation.protocol import Generation, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.core.markers import ModelName, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash

ChooserKind = Literal["examples", "shuffled", "zero_shot", "chance", "script"]


@dataclass(frozen=True, kw_only=True)
class PreferenceChooser(Settings):
    """Answers which preference an edit shows with one of the five that readers have; a script answers all else.

    Of several edits it looks at the last. The script makes no errors: it writes in the style that it is given, and
    combines several preferences dimension by dimension.

    Attributes:
        kind: who chooses: the model behind `examples`, behind examples with each other's answers (`shuffled`), behind a
            sentence alone (`zero_shot`), always calibrated as `AskChoices` does it; `chance`; or the script.
        model: a decoder-only model directory or run; the first three need one.
        form: of the prompt.
        shots: examples.
        sets: of examples; an edit is asked about behind one of them.
        seed: of examples and chance.
    """

    kind: ChooserKind = "examples"
    model: ModelName | None = None
    form: PromptFormat = "lines"
    shots: Annotated[int, at_least(1)] = 5
    sets: Annotated[int, at_least(1)] = 8
    seed: Seed = 0
    _opened: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in ("chance", "script") and self.model is None:
            raise ConfigError(f"model: expected a model directory where kind is {self.kind!r}")

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """A text, or a preference as JSON. Tokens are words and marks.

        Raises:
            DataError: a prompt without fenced data.
            ModelError: the model cannot be read.
        """
        data = fenced_data(prompt)
        if self.kind == "script" or "edits" not in data:
            return StyleWriter(slips=0.0, misreads=0.0, notices=1.0).generate(prompt, schema)
        edit = data["edits"][-1]
        text = json.dumps({"preference": self._chosen(edit["draft"], edit["edited"])})
        return Generation(text, len(words_and_marks(prompt)), len(words_and_marks(text)))

    def _chosen(self, draft: str, edited: str) -> str:
        item, number = preference_item(draft, edited), stable_hash(self.seed, "edit", draft, edited)
        if self.kind == "chance":
            return random.Random(number).choice(item.options)
        shots = self._shots(number % self.sets)
        prompts = [choice_prompt(self.form, shots, one) for one in (item, item.without_content())]
        found, base = self._scorer().logprobs(prompts)
        raised = [value - of for value, of in zip(found, base, strict=True)]
        return item.options[raised.index(max(raised))]

    def _shots(self, number: int) -> list[ChoiceItem]:
        if self.kind == "zero_shot":
            return []
        shots = list(draw_groups("style_source", self.seed, self.sets, 0, self.shots)[number].shots)
        if self.kind == "shuffled":
            return shuffled_answers(shots, random.Random(stable_hash("shuffled", self.seed, number)))
        return shots

    def _scorer(self) -> Any:
        from finegrained_lab.experiments.personalization.choices.scorer import ChoiceScorer
        from finegrained_rlhf.models.loading import open_policy

        if not self._opened:
            assert self.model is not None
            self._opened["scorer"] = ChoiceScorer(open_policy(self.model))
        return self._opened["scorer"]
