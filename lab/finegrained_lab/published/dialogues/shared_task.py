"""The prediction file of the DialDoc shared task (2021, subtask 1: the span of a Doc2Dial document), and its scores.

The task's script gives SQuAD v2's metric one row `{"id", "prediction_text", "no_answer_probability"}` a user turn, with
the one reference text of the agent turn behind it (`doc2dial.reference_text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.text.scores import exact_match, token_f1

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finder import Found


def write_shared_task(
    path: str | Path, answers: Iterable[Found], examples: Sequence[DialogueExample] | None = None
) -> dict[str, float] | None:
    """Write the file and, of dialogues with gold, score it as it lies on the disk.

    Args:
        path: the file.
        answers: of all dialogues.
        examples: as in `score_shared_task`; None scores nothing.
    """
    write_json(path, [shared_task_row(answer) for answer in answers])
    return None if examples is None else score_shared_task(read_shared_task(path), examples)


def shared_task_row(answer: Found) -> dict[str, Any]:
    """One row of the file. An answer is always given, so `no_answer_probability` is 0."""
    return {"id": answer.id, "prediction_text": answer.text, "no_answer_probability": 0.0}


def read_shared_task(path: str | Path) -> dict[str, str]:
    """The answer's text by the id of each dialogue.

    Args:
        path: a file of the shared task, ours or another's.

    Raises:
        DataError: naming file, row and field: not such a file, or an id occurs twice.
    """
    rows = read_json(path)
    texts: dict[str, str] = {}
    try:
        for i, value in enumerate(as_list(rows, "(file)")):
            row, where = as_object(value, f"[{i}]"), f"[{i}]."
            name = require_text(get_field(row, "id", where), f"{where}id")
            require(name not in texts, f"{name!r} occurs twice", f"{where}id")
            text = get_field(row, "prediction_text", where)
            texts[name] = require_text(text, f"{where}prediction_text", empty=True)
    except DataError as error:
        raise error.at(file=path) from None
    return texts


def score_shared_task(predictions: Mapping[str, str], examples: Sequence[DialogueExample]) -> dict[str, float]:
    """What SQuAD v2's metric says of the predictions for these dialogues.

    A reference without a word after normalisation is the empty answer, as there. Where every reference has words the
    figures are 100 times `exact_match` and `f1` of `finding.scores.summary`, over the same dialogues.

    Args:
        predictions: text by id; those for other dialogues are left out.
        examples: with gold.

    Returns:
        `exact` and `f1` in percent, and `total`, the number of dialogues.

    Raises:
        DataError: no dialogue is given, one has no prediction, or one has no gold.
    """
    if not examples:
        raise DataError("no dialogue names its gold knowledge, so no prediction can be scored")
    exact, f1 = 0.0, 0.0
    for example in examples:
        if example.id not in predictions:
            raise DataError("has no prediction", record=example.id, field="prediction_text")
        if not example.gold:
            raise DataError("is not labelled, so a prediction cannot be scored", record=example.id, field="gold")
        text, references = predictions[example.id], tuple(_with_words(example.reference_texts)) or ("",)
        exact += max(float(exact_match(text, reference)) for reference in references)
        f1 += max(token_f1(text, reference) for reference in references)
    total = len(examples)
    return {"exact": 100 * exact / total, "f1": 100 * f1 / total, "total": total}


def _with_words(references: Iterable[str]) -> list[str]:
    """The references that SQuAD's normalisation leaves a word of."""
    return [reference for reference in references if not exact_match(reference, "")]
