"""Predictions for INSCIT in the published format, those of baselines that need no model, and how good predictions are.

The file holds `[{conv_id, turn_id, context, output: {response, evidence: [{passage_id}], responseType}}]`. Measured
are, turn by turn and in all, passages found (PI-F1) and responses (BLEU, RG-F1), after eval/eval.py of the authors'
repository.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.published.inscit.data import InscitTurn
from finegrained_rlhf.core.checks import (
    as_index,
    as_list,
    as_object,
    get_field,
    is_number,
    require,
    require_text,
    text_list,
)
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.inscit.asking.measures import with_titles
from finegrained_rlhf.inscit.conversation import NO_INFORMATION, RESPONSE_TYPES
from finegrained_rlhf.metrics.functions import sacre_bleu
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.ranking import RankingMetrics, mean_of_turns
from finegrained_rlhf.retrieval.runs import Run
from finegrained_rlhf.text.scores import token_f1
from finegrained_rlhf.text.segmentation import english_tokens


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


CitedSentences = list[tuple[str, list[str]]]
"""The sentences of a response, each with the texts that it cites, their titles before them."""


def read_cited(path: str | Path) -> list[CitedSentences]:
    """The sentences of each turn of a file of predictions, which has `output.sentences`, and texts of the evidence.

    Raises:
        DataError: a field is missing or not as it should be, or a number names no evidence; names file, record, field.
    """
    turns = []
    for number, row in enumerate(as_list_of(path)):
        try:
            turns.append(_cited(as_object(get_field(as_object(row, "(prediction)"), "output"), "output")))
        except DataError as error:
            raise error.at(file=path, record=number) from None
    return turns


def _cited(output: Mapping[str, Any]) -> CitedSentences:
    texts, sentences = [], []
    for i, part in enumerate(as_list(get_field(output, "evidence", "output."), "output.evidence")):
        where = f"output.evidence[{i}]"
        row = as_object(part, where)
        text = require_text(get_field(row, "passage_text", f"{where}."), f"{where}.passage_text")
        titles = text_list(row.get("passage_titles", []), f"{where}.passage_titles")
        texts.append(with_titles(text, titles))
    for i, part in enumerate(as_list(get_field(output, "sentences", "output."), "output.sentences")):
        where = f"output.sentences[{i}]"
        row = as_object(part, where)
        sentence = require_text(get_field(row, "text", f"{where}."), f"{where}.text")
        cited = as_list(get_field(row, "citations", f"{where}."), f"{where}.citations")
        numbers = dict.fromkeys(as_index(one, f"{where}.citations") for one in cited)
        known = f"expected numbers of the {len(texts)} pieces of evidence, from 0, got {cited}"
        require(all(one < len(texts) for one in numbers), known, f"{where}.citations")
        sentences.append((sentence, [texts[one] for one in numbers]))
    return sentences


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


@dataclass(frozen=True)
class ScoredTurn:
    """A turn with what a system said, and its scores in [0, 1].

    Attributes:
        turn: the turn.
        prediction: of the system.
        pi_f1: F1 of the passages, best of the labels.
        rg_f1: F1 of the response's words, best of the labels.
    """

    turn: InscitTurn
    prediction: InscitPrediction
    pi_f1: float
    rg_f1: float

    @property
    def references(self) -> list[str]:
        """The labels' responses as BLEU reads them; of one label, its response twice."""
        texts = [_plain(label.response) for label in self.turn.labels]
        return texts * 2 if len(texts) == 1 else texts

    @property
    def response(self) -> str:
        """The system's response as BLEU reads it."""
        return _plain(self.prediction.response)


def scored_turn(turn: InscitTurn, prediction: InscitPrediction, empty: float = 0.0) -> ScoredTurn:
    """Score a turn.

    Args:
        turn: with its labels.
        prediction: for it.
        empty: PI-F1 of an empty prediction where a label's evidence is empty too; 0 as the authors' code has it, so
            that even the labels themselves stay below 100%.
    """
    pi = max(passage_f1(prediction.evidence, label.passages, empty) for label in turn.labels)
    rg = max(response_f1(prediction.response, label.response) for label in turn.labels)
    return ScoredTurn(turn, prediction, pi, rg)


def passage_f1(predicted: Collection[str], gold: Collection[str], empty: float = 0.0) -> float:
    """2 |P ∩ G| / (|P| + |G|) of two sets of passages; `empty` where both have none."""
    claimed, right = set(predicted), set(gold)
    return 2 * len(claimed & right) / (len(claimed) + len(right)) if claimed or right else empty


def response_f1(predicted: str, gold: str) -> float:
    """F1 of two responses' words, each as often as it occurs: spaCy's tokens, normalised as SQuAD's evaluation does."""
    return token_f1(_tokenised(_plain(predicted)), _tokenised(_plain(gold)))


@lru_cache(maxsize=100_000)
def _tokenised(text: str) -> str:
    return " ".join(english_tokens(text))


def _plain(text: str) -> str:
    """In small letters, white space collapsed."""
    return " ".join(text.lower().split())


def mean_percent(values: Sequence[float]) -> float | None:
    """The mean in percent; None of nothing."""
    return 100 * sum(values) / len(values) if values else None


def responses_bleu(turns: Sequence[ScoredTurn]) -> tuple[float, str]:
    """BLEU of all responses in [0, 100] and its signature; a turn with one label counts it as both references."""
    return sacre_bleu([one.response for one in turns], [one.references for one in turns])


def bleu_counts(one: ScoredTurn) -> NDArray[np.int64]:
    """What a turn adds to a corpus's BLEU: matched and all n-grams of 1 to 4 words, both lengths, [10]."""
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True).sentence_score(one.response, one.references)
    return np.array([*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len], dtype=np.int64)


def bleu_of_counts(counts: NDArray[np.int64]) -> float:
    """BLEU in [0, 100] of a corpus whose counts are these, summed."""
    from sacrebleu.metrics import BLEU

    numbers = counts.tolist()
    made: Any = BLEU.compute_bleu(numbers[:4], numbers[4:8], numbers[8], numbers[9], smooth_method="exp")
    return float(made.score)


def retrieval_scores(turns: Sequence[InscitTurn], run: Run, cutoffs: Sequence[int]) -> dict[str, float]:
    """`mrr`, `recall@k` and `hit_rate@k` in percent, of the passages that any label names, and how many `turns` count.

    Turns without such passages are left out. `hit_rate@k` is the thesis's HIT@k.

    Args:
        turns: all turns of a file.
        run: what was found, by `InscitTurn.name`.
        cutoffs: the k.

    Raises:
        ConfigError: pytrec_eval is not installed.
    """
    gold = {turn.name: {name: 1 for label in turn.labels for name in label.passages} for turn in turns}
    metrics = RankingMetrics(recall_at=tuple(cutoffs), ndcg_at=())
    means = mean_of_turns(metrics.of_turns(run, gold, [turn.name for turn in turns]))
    return {name: value if name == "turns" else 100 * value for name, value in means.items()}


def type_scores(rows: Sequence[tuple[str | None, str | None]]) -> dict[str, Any]:
    """`accuracy` and `macro_f1` in percent, and `confusion` (gold, then said), of (gold, said) types.

    The macro F1 is the mean over the types that occur on either side.
    """
    f1 = []
    for kind in RESPONSE_TYPES:
        hits = sum(gold == predicted == kind for gold, predicted in rows)
        named = sum(gold == kind for gold, _ in rows) + sum(predicted == kind for _, predicted in rows)
        if named:
            f1.append(2 * hits / named)
    return {
        "accuracy": mean_percent([float(gold == predicted) for gold, predicted in rows]),
        "macro_f1": mean_percent(f1),
        "confusion": {
            gold: {predicted: sum(row == (gold, predicted) for row in rows) for predicted in RESPONSE_TYPES}
            for gold in RESPONSE_TYPES
        },
    }
