"""Marks that people leave in the playground, as a feedback file that reward models are trained on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError, derived_id, pair_order
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.runtime.directory.lock import locked_file

FEEDBACK = "playground_feedback.json"
"""Name of the file, in the directory that is served."""
_IN_PROCESS = threading.Lock()


def add_mark(
    file: Path,
    question: str,
    passages: Sequence[Passage],
    answer: str,
    mark: SpanError | None,
    taxonomy: Taxonomy,
    correction: str | None = None,
) -> FeedbackRecord:
    """Add one mark to a feedback file, which is made where it is absent.

    The record of the question gets the answer where it does not have it yet. The file is replaced as a whole, under a
    lock, so that it is never half-written and no mark of another process is lost; the same mark is added once.

    Args:
        file: JSON array of feedback records.
        question: that was answered.
        passages: that it was answered from.
        answer: in which something is wrong.
        mark: what and where, in characters of the answer; None: somebody looked at it, and nothing is wrong.
        taxonomy: says which types there are.
        correction: the answer as it should be, where somebody wrote it.

    Returns:
        The question's record as it is now.

    Raises:
        DataError: the mark is no mark of the taxonomy or lies outside the answer; or the file is damaged, or of another
            taxonomy, and stays as it is.
    """
    if mark is not None and mark.error_type not in taxonomy.error_types:
        known = ", ".join(taxonomy.error_types) or "none"
        raise DataError(f"expected one of {known}, got {mark.error_type!r}", field="error type")
    with _IN_PROCESS, locked_file(file.with_name(f".{file.name}.lock"), wait=True):
        records = {record.id: record for record in (read_feedback(file, taxonomy) if file.exists() else ())}
        name = derived_id(question, passages)
        known_record = records.get(name)
        if known_record is None:
            marks = () if mark is None else (mark,)
            record = FeedbackRecord(name, question, tuple(passages), (answer,), Feedback(marks, (), correction))
        else:
            record = _with_mark(known_record, answer, mark, correction)
        write_feedback(file, {**records, name: record}.values())
    return record


def _with_mark(record: FeedbackRecord, answer: str, mark: SpanError | None, correction: str | None) -> FeedbackRecord:
    answers = record.predictions if answer in record.predictions else (*record.predictions, answer)
    place = answers.index(answer)
    before = record.marked.get(place, Feedback((), (), None))
    errors = before.errors if mark is None or mark in before.errors else (*before.errors, mark)
    corrected = before.corrected_prediction if correction is None else correction
    marked = {**record.marked, place: replace(before, errors=errors, corrected_prediction=corrected)}
    judged = dict(zip(pair_order(len(record.predictions)), record.preferences, strict=False))
    return replace(
        record,
        predictions=answers,
        preferences=tuple(judged.get(pair) for pair in pair_order(len(answers))) if judged else (),
        feedback=marked.pop(0, None),
        more_feedback=marked,
    )
