"""What StyleWorld's readers' edits cost, as a reward: what a reward that is learnt from them stands for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from finegrained_lab.worlds.style.drafts import read_wanted
from finegrained_lab.worlds.style.reader import StyleReader
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.generation.protocol import words_and_marks
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.placement import EMPTY
from finegrained_rlhf.rewards.protocol import BaseScorer
from finegrained_rlhf.text.edits import begun_distance, edit_mass
from finegrained_rlhf.text.segmentation import Granularity, cutter, look_ahead_of

_SEGMENTER = "english"
_GRANULARITY: Granularity = "sub_sentence"


class StyleEditScorer(BaseScorer):
    """Minus the words that the true reader changes in each sub-sentence; a response's values add up to −cost.

    A response that goes on is worth −min over j of the distance between it and the first j words of what the reader
    makes of it, so that with `credit=revised` nothing is taken for what is still to come.

    Args:
        contexts: files of contexts, which the prompts have as their question.
        preferences: file of the true preference by source.
    """

    def __init__(self, contexts: Sequence[InputFile], preferences: InputFile) -> None:
        self.contexts, self.preferences = list(contexts), preferences
        self.error_free_from, self.value_range = -0.5, None
        self.look_ahead = look_ahead_of(_SEGMENTER, _GRANULARITY)

    @cached_property
    def _wanted(self) -> dict[str, tuple[str, str]]:
        """Context and preference by the question of a prompt."""
        pairs = [pair for file in self.contexts for pair in read_wanted(file, self.preferences)]
        return {one.text: (one.text, preference) for one, preference in pairs}

    def _edited(self, prompt: Prompt, response: str) -> str:
        known = self._wanted.get(str(prompt.metadata.get("question")))
        if known is None:
            raise DataError("expected a context of these files as the question", record=prompt.id, field="question")
        return StyleReader(strict=True).edit(*known, response)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Minus the words changed in each segment; an empty response is one segment that costs what is put in."""
        cut = cutter(_SEGMENTER, _GRANULARITY)
        spans = [tuple(cut(response)) or (EMPTY,) for response in responses]
        masses = [
            edit_mass(response, self._edited(prompt, response), own)
            for prompt, response, own in zip(prompts, responses, spans, strict=True)
        ]
        return SegmentScores(spans, [tuple(-float(mass) for mass in row) for row in masses])

    def score_begun(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """What a beginning has cost so far, as one segment."""
        rows = [
            (words_and_marks(response), words_and_marks(self._edited(prompt, response)))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        spans = [((0, len(response)),) for response in responses]
        return SegmentScores(spans, [(-float(begun_distance(*row)),) for row in rows])
