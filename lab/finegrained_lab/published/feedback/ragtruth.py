"""RAGTruth (Niu et al., 2024): spans that the sources of an answer do not support.

Reads `response.jsonl` and `source_info.jsonl` as the README of ParticleMedia/RAGTruth describes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finegrained_lab.published.feedback.read import PublicReading
from finegrained_rlhf.annotation.annotations import located
from finegrained_rlhf.core.checks import as_index, as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError

_PASSAGE = re.compile(r"(?:^|\n)\s*passage \d+:")


@dataclass(frozen=True)
class RagTruth(Settings):
    """The answers of one split, each with its sources as passages; `taxonomy=ragtruth`.

    A summary's question is the first line of its prompt, as is that of an overview of structured data, whose passage is
    the data as JSON. Labels are kept whether the span happens to be true (`implicit_true`) or not: the source does not
    say it. Answers of a quality other than `good` are left out.

    Attributes:
        responses: `response.jsonl`.
        sources: `source_info.jsonl`.
        split: `train` or `test`; None takes both.
    """

    responses: InputFile
    sources: str
    split: str | None = None

    def read(self) -> PublicReading:
        """See `PublicFeedback.read`."""
        sources = {}
        for number, row in enumerate(read_jsonl(self.sources)):
            try:
                sources[str(get_field(row, "source_id"))] = _source(row)
            except DataError as error:
                raise error.at(file=self.sources, record=number) from None
        reading = PublicReading()
        for number, row in enumerate(read_jsonl(self.responses)):
            try:
                self._add(row, sources, reading)
            except DataError as error:
                raise error.at(file=self.responses, record=number) from None
        return reading

    def _add(self, row: Mapping[str, Any], sources: Mapping[str, Any], reading: PublicReading) -> None:
        if self.split is not None and get_field(row, "split") != self.split:
            reading.left_out["of another split"] += 1
            return
        if (quality := row.get("quality", "good")) != "good":
            reading.left_out[f"quality {quality}"] += 1
            return
        name = str(get_field(row, "source_id"))
        require(name in sources, f"there is no source {name!r}", "source_id")
        question, passages = sources[name]
        text = require_text(get_field(row, "response"), "response", empty=True)
        if not text.strip():
            reading.left_out["empty response"] += 1
            return
        errors = []
        for i, one in enumerate(as_list(get_field(row, "labels"), "labels")):
            at = f"labels[{i}]"
            label = as_object(one, at)
            start, end = (as_index(get_field(label, key, f"{at}."), f"{at}.{key}") for key in ("start", "end"))
            quoted = require_text(get_field(label, "text", f"{at}."), f"{at}.text", empty=True)
            try:
                start, end = located(text, start, end, quoted, reading.left_out)
            except DataError:
                reading.left_out["span that is not in its response"] += 1
                continue
            kind = require_text(get_field(label, "label_type", f"{at}."), f"{at}.label_type")
            errors.append(SpanError(start, end, kind, label.get("meta")))
        identifier = require_text(str(get_field(row, "id")), "id")
        feedback = Feedback(tuple(errors), (), None)
        reading.records.append(FeedbackRecord(identifier, question, passages, (text,), feedback))


def _source(row: Mapping[str, Any]) -> tuple[str, tuple[Passage, ...]]:
    """Question and passages of a source."""
    info, prompt = get_field(row, "source_info"), require_text(get_field(row, "prompt"), "prompt")
    first = next(line.strip() for line in prompt.splitlines() if line.strip())
    if isinstance(info, str):
        return first, (Passage("", "", (info,)),)
    data = as_object(info, "source_info")
    if "passages" in data:
        question = require_text(get_field(data, "question", "source_info."), "source_info.question")
        texts = _PASSAGE.split(require_text(data["passages"], "source_info.passages", empty=True))
        return question, tuple(Passage("", "", (text.strip(),)) for text in texts if text.strip())
    return first, (Passage("", "", (json.dumps(data, ensure_ascii=False),)),)
