"""What a file of continuation prompts holds, in numbers. Prints no text: many are offensive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.detoxification.prompts.reading import read_continuation_prompts
from finegrained_rlhf.detoxification.prompts.records import ContinuationPrompt
from finegrained_rlhf.text.tables import PrintFormat


@dataclass(frozen=True)
class PromptCounts:
    """Counts of rows.

    Attributes:
        rows: all of them.
        non_toxic: with a prompt toxicity below .5.
        toxic: with one of at least .5.
        no_score: with none.
        duplicate_prompts: whose prompt an earlier row has.
        challenging: that the data's authors call so.
        continuations_without_score: whose continuation has no toxicity.
    """

    rows: int
    non_toxic: int
    toxic: int
    no_score: int
    duplicate_prompts: int
    challenging: int
    continuations_without_score: int


def count_prompts(rows: Sequence[ContinuationPrompt]) -> PromptCounts:
    """The counts of these rows."""
    toxic = [row.prompt.is_toxic for row in rows]
    return PromptCounts(
        rows=len(rows),
        non_toxic=toxic.count(False),
        toxic=toxic.count(True),
        no_score=toxic.count(None),
        duplicate_prompts=len(rows) - len({row.prompt.text for row in rows}),
        challenging=sum(row.challenging for row in rows),
        continuations_without_score=sum(row.continuation.toxicity is None for row in rows),
    )


@dataclass(frozen=True)
class InspectPrompts(Settings):
    """The job of `finegrained inspect-prompts`.

    Attributes:
        data: a file of RealToxicityPrompts.
        format: `table`, or `json` for one JSON document.
    """

    data: InputFile
    format: PrintFormat = "table"

    def run(self) -> PromptCounts:
        """Read the file, count, print."""
        counts = count_prompts(read_continuation_prompts(self.data))
        values = asdict(counts)
        if self.format == "json":
            print(json.dumps(values, indent=2))
        else:
            print("\n".join(f"{name.replace('_', ' '):<28}{value:>8,}" for name, value in values.items()))
        return counts
