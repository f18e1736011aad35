"""Reading RealToxicityPrompts: JSON lines as its authors publish them.

A row has `prompt` and `continuation`, each with `text` and `toxicity` (from 0 to 1, or null), and `challenging`. Other
fields (`filename`, `begin`, `end`, seven more scores) are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_object, get_field, is_number, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.detoxification.prompts.records import ContinuationPrompt, ScoredText


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
