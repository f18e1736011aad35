"""Predictions in the published format, and those of baselines that need no model.

The file holds `[{conv_id, turn_id, context, output: {response, evidence: [{passage_id}], responseType}}]`. Does not
score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, is_number, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.inscit.data.records import RESPONSE_TYPES, InscitTurn
from finegrained_rlhf.retrieval.protocol import Hit

NO_INFORMATION = "Sorry, I did not find any useful information."
"""What is said where there is nothing to say (the authors' first-turn baseline)."""


@dataclass(frozen=True)
class InscitPrediction:
    """What a system says in a turn.

    Attributes:
        response: its words; may be empty.
        evidence: ids of the passages that it rests on.
        response_type: what kind of answer the system says it is; None where it does not.
    """

    response: str
    evidence: tuple[str, ...] = ()
    response_type: str | None = None


Predictions = Mapping[tuple[str, int], InscitPrediction]
"""By conversation and turn."""


def read_predictions(path: str | Path, turns: Sequence[InscitTurn]) -> dict[tuple[str, int], InscitPrediction]:
    """Read predictions for exactly these turns.

    Raises:
        DataError: a turn is missing, there twice, unknown, or has another context; or a field is not as it should be.
            The error names file, conversation and turn.
    """
    known = {turn.key: turn for turn in turns}
    predictions: dict[tuple[str, int], InscitPrediction] = {}
    for number, row in enumerate(as_list_of(path)):
        try:
            key, prediction = _prediction(as_object(row, "(prediction)"), known)
            require(key not in predictions, f"conversation {key[0]!r}, turn {key[1]} is predicted twice", "turn_id")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        predictions[key] = prediction
    missing = [key for key in known if key not in predictions]
    if missing:
        where = "conversation {!r}, turn {}".format(*missing[0])
        raise DataError(f"{len(missing)} of {len(known)} turns are not predicted, the first is {where}", file=path)
    return predictions


def as_list_of(path: str | Path) -> list[Any]:
    """The list in a JSON file. Raises DataError where it holds something else."""
    try:
        return as_list(read_json(path), "(file)")
    except DataError as error:
        raise error.at(file=path) from None


def _prediction(
    row: Mapping[str, Any], known: Mapping[tuple[str, int], InscitTurn]
) -> tuple[tuple[str, int], InscitPrediction]:
    name, turn = require_text(get_field(row, "conv_id"), "conv_id"), turn_number(get_field(row, "turn_id"))
    key = (name, turn)
    require(key in known, f"conversation {name!r} has no turn {turn} in the data", "turn_id")
    context = tuple(text_list(get_field(row, "context"), "context"))
    problem = f"conversation {name!r}, turn {turn} has another context in the data"
    require(context == known[key].context, problem, "context")
    output = as_object(get_field(row, "output"), "output")
    evidence = as_list(get_field(output, "evidence", "output."), "output.evidence")
    ids = []
    for i, part in enumerate(evidence):
        where = f"output.evidence[{i}]"
        ids.append(require_text(get_field(as_object(part, where), "passage_id", f"{where}."), f"{where}.passage_id"))
    kind = output.get("responseType")
    expected = ", ".join(RESPONSE_TYPES)
    require(kind is None or kind in RESPONSE_TYPES, f"expected one of {expected}, got {kind!r}", "output.responseType")
    response = require_text(get_field(output, "response", "output."), "output.response", empty=True)
    return key, InscitPrediction(response, tuple(ids), kind)


def turn_number(value: Any) -> int:
    """The number of a turn, from 1; published files write it as a text."""
    text = str(value)
    require(text.isdecimal() and int(text) > 0, f"expected the number of a turn, from 1, got {value!r}", "turn_id")
    return int(text)


def read_retrieved(path: str | Path, turns: Sequence[InscitTurn]) -> dict[str, list[Hit]]:
    """Read ranked passages, `[{conv_id, turn_id, ctxs: [{id, score}]}]`, of these turns; those of others are not read.

    Returns:
        A run, by `InscitTurn.name`.

    Raises:
        DataError: a turn is missing or there twice, or a field is not as it should be.
    """
    names, run = {turn.key: turn.name for turn in turns}, dict[str, list[Hit]]()
    for number, value in enumerate(as_list_of(path)):
        try:
            row = as_object(value, "(row)")
            key = require_text(get_field(row, "conv_id"), "conv_id"), turn_number(get_field(row, "turn_id"))
            if key not in names:
                continue
            require(names[key] not in run, f"conversation {key[0]!r}, turn {key[1]} is there twice", "turn_id")
            parts = as_list(get_field(row, "ctxs"), "ctxs")
            run[names[key]] = [_hit(part, f"ctxs[{i}]") for i, part in enumerate(parts)]
        except DataError as error:
            raise error.at(file=path, record=number) from None
    for turn in turns:
        if turn.name not in run:
            where = "conversation {!r}, turn {}".format(*turn.key)
            raise DataError(f"no passages were retrieved for {where}", file=path)
    return run


def _hit(value: Any, where: str) -> Hit:
    row = as_object(value, where)
    score = get_field(row, "score", f"{where}.")
    require(is_number(score), f"expected a number, got {score!r}", f"{where}.score")
    return Hit(require_text(get_field(row, "id", f"{where}."), f"{where}.id"), float(score))


def write_predictions(path: str | Path, turns: Sequence[InscitTurn], predictions: Predictions) -> None:
    """Write predictions in the published format, turn by turn."""
    rows = []
    for turn in turns:
        one = predictions[turn.key]
        output: dict[str, Any] = {
            "response": one.response,
            "evidence": [{"passage_id": name} for name in one.evidence],
        }
        if one.response_type is not None:
            output["responseType"] = one.response_type
        name, number = turn.key
        rows.append({"conv_id": name, "turn_id": number, "context": list(turn.context), "output": output})
    write_json(path, rows)


def last_turn(
    turns: Sequence[InscitTurn], first: InscitPrediction | None = None
) -> dict[tuple[str, int], InscitPrediction]:
    """The baseline that repeats the turn before: its evidence and its response.

    Args:
        turns: to answer.
        first: what is said in a first turn; None says `NO_INFORMATION`, which rests on nothing.
    """
    return {
        turn.key: InscitPrediction(turn.context[-2], tuple(passage.id for passage in turn.earlier[-1]))
        if turn.earlier
        else first or InscitPrediction(NO_INFORMATION)
        for turn in turns
    }


def most_frequent(turns: Sequence[InscitTurn]) -> InscitPrediction:
    """The response and the set of evidence that most labels have; of equally frequent ones the first."""
    labels = [label for turn in turns for label in turn.labels]
    responses = Counter(label.response for label in labels)
    most = Counter(label.passages for label in labels).most_common(1)[0][0]
    first = next(label for label in labels if label.passages == most)
    return InscitPrediction(
        responses.most_common(1)[0][0], tuple(dict.fromkeys(passage.id for passage in first.evidence))
    )


BASELINES = {"last_turn": last_turn}
"""Baselines by name."""
