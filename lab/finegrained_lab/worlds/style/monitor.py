"""What StyleWorld's reader would make of drafts, beside a reward.

Knows contexts, preferences and the reader. Does not know the policy whose drafts they are, nor its reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from finegrained_lab.worlds.style.drafts import read_wanted
from finegrained_lab.worlds.style.reader import StyleReader
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.personalization.span_feedback import edit_cost

MEASURES = ("truth/cost", "truth/untouched")


@dataclass(frozen=True)
class StyleWorldMonitor(Settings):
    """What the reader's edits of drafts would cost; satisfies `inference.config.ResponseMonitor`.

    Attributes:
        contexts: file of contexts, whose ids the prompts have.
        preferences: file of the true preference by source.
    """

    contexts: InputFile
    preferences: InputFile

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(sum, count) over R responses of `truth/cost` (words and marks to change) and `truth/untouched`.

        Raises:
            DataError: a prompt is no context of the file, or a file is damaged.
        """
        reader, cost, untouched = StyleReader(strict=True), 0, 0
        for prompt, draft in zip(prompts, responses, strict=True):
            if prompt.id not in self._known:
                raise DataError(f"expected the id of a context, got {prompt.id!r}", file=self.contexts)
            text, preference = self._known[prompt.id]
            edited = reader.edit(text, preference, draft)
            cost += edit_cost(draft, edited).distance
            untouched += edited == draft
        count = float(len(prompts))
        return {MEASURES[0]: (float(cost), count), MEASURES[1]: (float(untouched), count)}

    @cached_property
    def _known(self) -> Mapping[str, tuple[str, str]]:
        """Text and preference by the id of a context; read when it is first asked for."""
        wanted = read_wanted(self.contexts, self.preferences)
        return {one.id: (one.text, preference) for one, preference in wanted}
