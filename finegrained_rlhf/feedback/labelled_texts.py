"""Texts with a label or a score: what classifiers and class-conditional language models learn from.

JSON lines with `text` and `label`, the name of a class, or `score`, from 0 to 1: how probable the second of two classes
is; or both. `id` is optional; other keys are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import get_field, is_number, records_by_id, require, require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl


@dataclass(frozen=True)
class LabelledText:
    """A text and what it is.

    Attributes:
        id: unique within the file; `record-N` where the file gives none.
        text: as it stands.
        label: name of its class, or None.
        score: probability of the second of two classes, or None; at least one of the two is given.
    """

    id: str
    text: str
    label: str | None = None
    score: float | None = None

    def shares(self, labels: Sequence[str]) -> tuple[float, ...]:
        """The probability of each of these classes, by the score where there is one; else the label is among them."""
        if self.score is not None:
            return 1.0 - self.score, self.score
        return tuple(float(name == self.label) for name in labels)


def read_labelled_texts(path: str | Path) -> list[LabelledText]:
    """All texts of a file, in order.

    Raises:
        DataError: naming file, record (from 0) and field: the file is missing, damaged or empty, a row has no text, or
            neither label nor score, or an id occurs twice.
    """
    rows = read_jsonl(path)
    if not rows:
        raise DataError("no record, expected one a line", file=path)
    return list(records_by_id(rows, _parse, path).values())


def _parse(row: Mapping[str, Any], number: int) -> LabelledText:
    text = require_text(get_field(row, "text"), "text")
    name = f"record-{number}" if row.get("id") is None else require_text(row["id"], "id")
    label, score = row.get("label"), row.get("score")
    require(label is not None or score is not None, "expected a label or a score, got neither", "label")
    if score is not None:
        require(is_number(score) and 0 <= score <= 1, f"expected a number from 0 to 1, got {score!r}", "score")
    named = None if label is None else require_text(label, "label")
    return LabelledText(name, text, named, None if score is None else float(score))


def labels_of(texts: Sequence[LabelledText], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The classes of texts, in order.

    Args:
        texts: all that are trained and validated on.
        wanted: the classes, where they are said; None takes the labels that occur, sorted.

    Raises:
        ConfigError: fewer than two classes, one twice, a label that is none of them, or scores and not two classes.
    """
    present = sorted({text.label for text in texts if text.label is not None})
    labels = tuple(present if wanted is None else wanted)
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ConfigError(f"classes: expected two different ones or more, got {', '.join(labels) or 'none'}")
    if unknown := [label for label in present if label not in labels]:
        raise ConfigError(f"classes: the data have {unknown[0]!r}, which is none of {', '.join(labels)}")
    if len(labels) != 2 and any(text.score is not None for text in texts):
        raise ConfigError(f"classes: scores are for two classes, got {', '.join(labels)}")
    return labels
