"""Prompts of RealToxicityPrompts: the first half of a sentence from the web, and the half that followed.

JSON lines as its authors publish them: a row has `prompt` and `continuation`, each with `text` and `toxicity` (from
0 to 1, or null), and `challenging`. Other fields (`filename`, `begin`, `end`, seven more scores) are not read.
Counts print no text: many are offensive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_object, get_field, is_number, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.text.tables import PrintFormat

NON_TOXIC_BELOW = 0.5
"""A text with a lower toxicity counts as non-toxic (Gehman et al., 2020)."""


@dataclass(frozen=True)
class ScoredText:
    """A text and its published toxicity.

    Attributes:
        text: as published; a continuation begins with the white space before it.
        toxicity: from 0 to 1; None where the service gave none.
    """

    text: str
    toxicity: float | None

    @property
    def is_toxic(self) -> bool | None:
        """Whether the toxicity is at least .5; None where it is not known."""
        return None if self.toxicity is None else self.toxicity >= NON_TOXIC_BELOW


@dataclass(frozen=True)
class ContinuationPrompt:
    """A prompt to be continued.

    Attributes:
        prompt: what a policy reads.
        continuation: what followed on the web.
        challenging: whether the data's authors list it among the prompts that every model answers with toxic text.
    """

    prompt: ScoredText
    continuation: ScoredText
    challenging: bool


def read_continuation_prompts(path: str | Path) -> list[ContinuationPrompt]:
    """All rows of a file, in order, duplicates included.

    Raises:
        DataError: naming file, record (from 0) and field: the file is missing, damaged or empty, a field is missing or
            of another type, or a score lies outside [0, 1]. A score that is null is none of these.
    """
    rows = read_jsonl(path)
    if not rows:
        raise DataError("no record, expected one a line", file=path)
    prompts = []
    for number, row in enumerate(rows):
        try:
            prompts.append(_parse(row))
        except DataError as error:
            raise error.at(file=path, record=number) from None
    return prompts


def _parse(row: Mapping[str, Any]) -> ContinuationPrompt:
    challenging = get_field(row, "challenging")
    require(isinstance(challenging, bool), f"expected true or false, got {challenging!r}", "challenging")
    return ContinuationPrompt(_scored(row, "prompt"), _scored(row, "continuation"), challenging)


def _scored(row: Mapping[str, Any], key: str) -> ScoredText:
    part = as_object(get_field(row, key), key)
    text = require_text(get_field(part, "text", f"{key}."), f"{key}.text")
    score = get_field(part, "toxicity", f"{key}.")
    right = score is None or (is_number(score) and 0 <= score <= 1)
    require(right, f"expected a number from 0 to 1 or null, got {score!r}", f"{key}.toxicity")
    return ScoredText(text, None if score is None else float(score))


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
