"""How sub-sentences of an answer are mapped to passage sentences: the setting, read without numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.core.fields import Settings

Matching = Literal["original", "token_f1"]


@dataclass(frozen=True)
class CompletenessConfig(Settings):
    """How sub-sentences are mapped to passage sentences.

    Attributes:
        matching: `original`: windows of words compared by difflib's quick ratio, as in the original code; `token_f1`:
            the sentence with the highest word F1, as the thesis says.
    """

    matching: Matching = "original"
