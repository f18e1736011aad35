"""PRM800K (Lightman et al., 2023): solutions to problems of mathematics, whose every step people rated.

Reads the lines of `prm800k/data/phase*.jsonl` as the README of openai/prm800k describes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_lab.published.feedback.read import PublicReading
from finegrained_rlhf.core.checks import as_index, as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError

RATINGS = {-1: "Incorrect", 0: "No-progress", 1: None}
"""What a rating marks a step with."""


@dataclass(frozen=True)
class Prm800k(Settings):
    """Solutions with their steps, a line each; `taxonomy=prm800k`, whose density is `own`, between line feeds.

    The steps are those that were chosen, or that a person wrote; of a last step of which none was chosen, the first one
    that was offered. White space inside a step becomes blanks, so that a line is a step. A person's own step is taken
    as right. Problems that were reported as broken, given up, or have a step without a rating are left out, as are the
    questions that screened labelers, which everybody got.

    Attributes:
        data: JSON lines.
        screening: take the screening and quality-control questions too.
    """

    data: InputFile
    screening: bool = False

    def read(self) -> PublicReading:
        """See `PublicFeedback.read`."""
        reading = PublicReading()
        for number, row in enumerate(read_jsonl(self.data)):
            try:
                self._add(row, number, reading)
            except DataError as error:
                raise error.at(file=self.data, record=number) from None
        return reading

    def _add(self, row: Mapping[str, Any], number: int, reading: PublicReading) -> None:
        label = as_object(get_field(row, "label"), "label")
        reason = get_field(label, "finish_reason", "label.")
        if reason in ("bad_problem", "give_up"):
            reading.left_out[f"{reason}"] += 1
            return
        known = row.get("is_quality_control_question") or row.get("is_initial_screening_question")
        if known and not self.screening:
            reading.left_out["screening or quality control"] += 1
            return
        steps = as_list(get_field(label, "steps", "label."), "label.steps")
        rated = [_step(as_object(step, f"label.steps[{i}]"), f"label.steps[{i}]") for i, step in enumerate(steps)]
        if not rated or any(one is None for one in rated):
            reading.left_out["a step without text or rating"] += 1
            return
        question = as_object(get_field(row, "question"), "question")
        problem = require_text(get_field(question, "problem", "question."), "question.problem")
        text, errors = _lines([one for one in rated if one is not None])
        people = (str(row["labeler"]),) if row.get("labeler") else ()
        reading.records.append(
            FeedbackRecord(
                id=str(number),
                question=problem,
                passages=(),
                predictions=(text,),
                feedback=Feedback(errors, (), None, people),
                gold=question.get("ground_truth_solution") or None,
            )
        )


def _step(step: Mapping[str, Any], at: str) -> tuple[str, int] | None:
    """Text and rating of the step that was taken; None where it has none."""
    offered = as_list(get_field(step, "completions", f"{at}.") or [], f"{at}.completions")
    chosen, human = step.get("chosen_completion"), step.get("human_completion")
    if chosen is None and human:
        written = human["text"] if isinstance(human, Mapping) else human
        return " ".join(require_text(written, f"{at}.human_completion").split()), 1
    place = 0 if chosen is None else as_index(chosen, f"{at}.chosen_completion")
    require(place < len(offered) or not offered, f"there is no completion {place}", f"{at}.chosen_completion")
    if not offered:
        return None
    one = as_object(offered[place], f"{at}.completions[{place}]")
    text = " ".join(require_text(one.get("text"), f"{at}.completions[{place}].text", empty=True).split())
    rating = one.get("rating")
    field = f"{at}.completions[{place}].rating"
    require(rating is None or rating in RATINGS, f"expected -1, 0 or 1, got {rating!r}", field)
    return None if rating is None or not text else (text, rating)


def _lines(steps: Sequence[tuple[str, int]]) -> tuple[str, tuple[SpanError, ...]]:
    text, errors = "", []
    for step, rating in steps:
        start = len(text) + bool(text)
        text = f"{text}\n{step}" if text else step
        kind = RATINGS[rating]
        if kind is not None:
            errors.append(SpanError(start, len(text), kind))
    return text, tuple(errors)
