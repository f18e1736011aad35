"""The SCAI-QReCC shared task: its run file read, its scores, and the job behind `finegrained evaluate-scai`.

Reads `run.json` and counts what the task's evaluator counts (`scai-qrecc21-evaluator.py`, 2021-10-04), without the
task's model-based scores of answers (SAS, POSSCORE).
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finegrained_lab.published.questions.turns import conversation_number
from finegrained_rlhf.conqrr.data import as_turn, optional_text
from finegrained_rlhf.core.checks import as_object, get_field, is_number, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.metrics.functions import rouge1_recalls
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.ranking import RankingMetrics
from finegrained_rlhf.retrieval.runs import Run
from finegrained_rlhf.runtime.directory.provenance import commit_of
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.text.scores import exact_match, token_f1
from finegrained_rlhf.text.tables import markdown_table


@dataclass(frozen=True)
class ScaiTruth:
    """What is right for one turn.

    Attributes:
        id: `CONVERSATION_TURN`.
        turn: number of the turn, from 1.
        rewrite: the human's; None where there is none.
        answer: None where there is none.
        gold: ids of the truth passages.
    """

    id: str
    turn: int
    rewrite: str | None
    answer: str | None
    gold: tuple[str, ...]


@dataclass(frozen=True)
class ScaiTurn:
    """What a system says of one turn; what it leaves out is None.

    Attributes:
        rewrite: of the question.
        passages: that it found, with scores.
        answer: to the question.
    """

    rewrite: str | None = None
    passages: tuple[Hit, ...] | None = None
    answer: str | None = None


_SILENT = ScaiTurn()


@dataclass(frozen=True)
class ScaiScores:
    """The task's scores and what they are means of.

    Attributes:
        scores: `QR` (ROUGE-1 recall of rewrites), `MRR`, and of answers `EM`, `F1`, `ROUGE1-R`, each in [0, 1]; those
            of steps that the run leaves out are absent.
        turns: how many turns `QR`, `MRR` and `answers` are means of.
        absent: turns with truth passages for which the run has no `Model_passages`; the task leaves them out of MRR.
        unknown: turns of the run that the data does not have; nothing counts them.
    """

    scores: Mapping[str, float]
    turns: Mapping[str, int] = field(default_factory=dict)
    absent: int = 0
    unknown: int = 0


def read_scai_truth(path: str | Path) -> list[ScaiTruth]:
    """Read the ground truth: `ground-truth.json`, or a file of turns, whose further fields are ignored.

    Raises:
        DataError: naming file, record (from 0) and field; a turn that occurs twice, no turn at all.
    """
    truths: list[ScaiTruth] = []
    for row, name, turn in _records(path):
        try:
            gold = text_list(row.get("Truth_passages") or [], "Truth_passages")
            for place, passage in enumerate(gold):
                require_text(passage, f"Truth_passages[{place}]")
            rewrite = optional_text(get_field(row, "Truth_rewrite"), "Truth_rewrite")
            answer = optional_text(get_field(row, "Truth_answer"), "Truth_answer")
        except DataError as error:
            raise error.at(file=path, record=len(truths)) from None
        truths.append(ScaiTruth(name, turn, rewrite, answer, tuple(dict.fromkeys(gold))))
    return truths


def read_scai_run(path: str | Path) -> dict[str, ScaiTurn]:
    """Read `run.json`: what is said of each turn, by `CONVERSATION_TURN`; a null is absent.

    Raises:
        DataError: naming file, record (from 0) and field; a turn that occurs twice, no turn at all.
    """
    turns: dict[str, ScaiTurn] = {}
    for row, name, _ in _records(path):
        try:
            turns[name] = ScaiTurn(
                _text(row.get("Model_rewrite"), "Model_rewrite"),
                _passages(row.get("Model_passages")),
                _text(row.get("Model_answer"), "Model_answer"),
            )
        except DataError as error:
            raise error.at(file=path, record=len(turns)) from None
    return turns


def _records(path: str | Path) -> Iterator[tuple[Mapping[str, Any], str, int]]:
    """The records of a file of turns, the name of each turn and its number."""
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise DataError("expected a JSON array of turns, one at least", file=path)
    names: set[str] = set()
    for i, row in enumerate(rows):
        try:
            row = as_object(row, "(record)")
            turn = as_turn(get_field(row, "Turn_no"), "Turn_no")
            name = f"{conversation_number(row)}_{turn}"
            require(name not in names, f"turn {name} occurs twice", "Turn_no")
        except DataError as error:
            raise error.at(file=path, record=i) from None
        names.add(name)
        yield row, name, turn


def _text(value: Any, field: str) -> str | None:
    return None if value is None else require_text(value, field, empty=True)


def _passages(value: Any) -> tuple[Hit, ...] | None:
    if value is None:
        return None
    hits = []
    for name, score in as_object(value, "Model_passages").items():
        require(bool(name.strip()), "expected the id of a passage, got blank text", "Model_passages")
        require(is_number(score), f"expected a number, got {score!r}", f"Model_passages.{name}")
        hits.append(Hit(name, float(score)))
    return tuple(hits)


def score_scai(
    truth: Sequence[ScaiTruth],
    run: Mapping[str, ScaiTurn],
    *,
    first_turns: bool = False,
    missing_truth: bool = False,
) -> ScaiScores:
    """Score a run as the task does.

    - `QR` is the mean ROUGE-1 recall over turns after the first that have a human rewrite; a rewrite that the run lacks
      counts as 0. (The task's own is the median of 1,000 bootstrap means, which differs in the fourth digit.)
    - `MRR` is over turns with truth passages for which the run has `Model_passages`; turns that it lacks are left out.
    - `EM`, `F1` (SQuAD's) and `ROUGE1-R` are over turns with an answer; an answer that the run lacks is empty.

    A step of which the run says nothing has no score.

    Args:
        truth: the ground truth, as `read_scai_truth` gives it.
        run: as `read_scai_run` gives it.
        first_turns: rewrites of first turns count too (`--eval-turn-one-rewrites`).
        missing_truth: turns without a truth count too, as wrong, as in QReCC's paper (`--eval-missing-truth`).

    Raises:
        DataError: no turn of the run is one of the data.
    """
    known = {turn.id for turn in truth}
    if not known.intersection(run):
        problem = "no turn of the run is one of the data: is it a run of another file?"
        raise DataError(problem, record=next(iter(run), None))
    scores: dict[str, float] = {}
    turns: dict[str, int] = {}
    questions = [e for e in truth if (first_turns or e.turn > 1) and (missing_truth or e.rewrite is not None)]
    if questions and any(turn.rewrite is not None for turn in run.values()):
        turns["QR"] = len(questions)
        scores["QR"] = _mean_recall([(run.get(e.id, _SILENT).rewrite or "", e.rewrite or "") for e in questions])
    searches = {name: turn.passages for name, turn in run.items() if turn.passages is not None}
    judged = [e for e in truth if e.gold or missing_truth]
    searched = [e for e in judged if e.id in searches]
    if searched:
        turns["MRR"] = len(searched)
        scores["MRR"] = _mrr(searched, searches)
    answered = [e for e in truth if missing_truth or e.answer is not None]
    if any(run.get(e.id, _SILENT).answer is not None for e in answered):
        turns["answers"] = len(answered)
        pairs = [(run.get(e.id, _SILENT).answer or "", e.answer or "") for e in answered]
        scores["EM"] = statistics.fmean(exact_match(*pair) for pair in pairs)
        scores["F1"] = statistics.fmean(token_f1(*pair) for pair in pairs)
        scores["ROUGE1-R"] = _mean_recall(pairs)
    absent = len(judged) - len(searched) if searches else 0
    return ScaiScores(scores, turns, absent, len(run.keys() - known))


def _mean_recall(pairs: Collection[tuple[str, str]]) -> float:
    return statistics.fmean(rouge1_recalls([ours for ours, _ in pairs], [truth for _, truth in pairs]))


def _mrr(turns: Sequence[ScaiTruth], run: Run) -> float:
    judgements = {turn.id: dict.fromkeys(turn.gold, 1) for turn in turns if turn.gold}
    names = [turn.id for turn in turns]
    values = RankingMetrics(form="original", recall_at=(), ndcg_at=()).of_turns(
        {name: run[name] for name in names}, judgements, names
    )
    return statistics.fmean(of["mrr"] for of in values.values())


@dataclass(frozen=True)
class EvaluateScai(Settings):
    """The shared task's scores of a `run.json`.

    Attributes:
        data: the ground truth: the task's `ground-truth.json`, or a file of its turns.
        predictions: the run file.
        output: results file (JSON); null prints only.
        first_turns: rewrites of first turns count too.
        missing_truth: turns without truth count too, as wrong, as in QReCC's paper.
    """

    data: InputFile
    predictions: InputFile
    output: OutputFile | None = None
    first_turns: bool = False
    missing_truth: bool = False

    def run(self) -> dict[str, Any]:
        """Read, score, write, print.

        Raises:
            DataError: a broken file, or a run of which no turn is in the data.
        """
        truth = read_scai_truth(self.data)
        run = read_scai_run(self.predictions)
        try:
            scored = score_scai(truth, run, first_turns=self.first_turns, missing_truth=self.missing_truth)
        except DataError as error:
            raise error.at(file=self.predictions) from None
        result = {
            "commit": commit_of(Path(__file__).parent),
            "settings": as_config(self),
            **asdict(scored),
        }
        if self.output is not None:
            write_json(self.output, result)
        counts = {"QR": "QR", "MRR": "MRR"}
        rows = [
            {"score": name, "value": value, "turns": scored.turns[counts.get(name, "answers")]}
            for name, value in scored.scores.items()
        ]
        print(markdown_table(rows, ("score", "value", "turns")), end="")
        if scored.absent:
            print(f"{scored.absent} turns with truth passages have no Model_passages and are left out of MRR")
        if scored.unknown:
            print(f"{scored.unknown} turns of the run are not in the data")
        return result
