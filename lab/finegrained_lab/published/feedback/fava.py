"""FavaBench (Mishra et al., 2024): passages in which people tagged six types of hallucination.

Tags as abhika-m/FAVA has them (`utils.py`, README.md): `<type>…</type>` around what is wrong, inside `<delete>` what
the model wrote and `<mark>` what should stand there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.published.feedback.read import PublicReading
from finegrained_rlhf.core.checks import as_list, as_object, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError

TYPES = ("entity", "relation", "contradictory", "unverifiable", "invented", "subjective")
_WHOLE = ("contradictory", "unverifiable", "invented", "subjective")
"""Types whose whole span is wrong: nothing of it can be kept."""
_TAG = re.compile(r"<(/?)(entity|relation|contradictory|unverifiable|invented|subjective|delete|mark)>")


@dataclass(frozen=True)
class FavaBench(Settings):
    """Annotated passages with what they should say; `taxonomy=fava`.

    The answer is the text without tags and without what should stand there; the correction is the text without what is
    wrong, as the authors take it. What the tags leave must be the model's own text, white space aside, where the file
    has it (`output` or `passage`); else the record is left out.

    Attributes:
        data: JSON array or JSON lines with `annotated`, and with `prompt` or `title`, and `evidence` or `reference`,
            where there are.
    """

    data: InputFile

    def read(self) -> PublicReading:
        """See `PublicFeedback.read`."""
        rows = read_jsonl(self.data) if Path(self.data).suffix == ".jsonl" else as_list(read_json(self.data), "(file)")
        reading = PublicReading()
        for number, row in enumerate(rows):
            try:
                _add(as_object(row, "(record)"), number, reading)
            except DataError as error:
                raise error.at(file=self.data, record=number) from None
        return reading


def _add(row: Mapping[str, Any], number: int, reading: PublicReading) -> None:
    tagged = require_text(row.get("annotated"), "annotated").replace("</s>", "")
    text, corrected, errors = untagged(tagged)
    output = row.get("output", row.get("passage"))
    if output is not None and "".join(output.split()) != "".join(text.split()):
        reading.left_out["the tags leave another text than the model's"] += 1
        return
    if not text.strip():
        reading.left_out["empty passage"] += 1
        return
    question = row.get("prompt") or row.get("title") or row.get("subject") or "Write a passage."
    evidence = row.get("evidence") or row.get("reference")
    passages = (Passage("", "", (require_text(evidence, "evidence"),)),) if evidence else ()
    name = str(row.get("id", number))
    feedback = Feedback(errors, (), corrected.strip())
    reading.records.append(FeedbackRecord(name, require_text(question, "prompt"), passages, (text,), feedback))


def untagged(tagged: str) -> tuple[str, str, tuple[SpanError, ...]]:
    """The model's text, the corrected text, and the spans of the first; a span of white space alone is none.

    Raises:
        DataError: a tag is closed that is not open, or the other way round.
    """
    text, corrected, errors, place = "", "", [], 0
    opened: list[tuple[str, int]] = []
    for tag in _TAG.finditer(tagged):
        text, corrected = _grown(text, corrected, tagged[place : tag.start()], [name for name, _ in opened])
        place = tag.end()
        if not tag.group(1):
            opened.append((tag.group(2), len(text)))
            continue
        require(bool(opened) and opened[-1][0] == tag.group(2), f"</{tag.group(2)}> closes nothing", "annotated")
        name, start = opened.pop()
        if name in TYPES and text[start:].strip():
            errors.append(SpanError(start, len(text), name))
    require(not opened, f"<{opened[-1][0] if opened else ''}> is never closed", "annotated")
    text, corrected = _grown(text, corrected, tagged[place:], [])
    return text, corrected, tuple(sorted(errors, key=lambda error: (error.start, error.end)))


def _grown(text: str, corrected: str, piece: str, opened: list[str]) -> tuple[str, str]:
    """Both texts with a piece: what is marked is only in the correction, what is wrong only in the text."""
    if "mark" in opened:
        return text, corrected + piece
    wrong = "delete" in opened or any(name in _WHOLE for name in opened)
    return text + piece, corrected if wrong else corrected + piece
