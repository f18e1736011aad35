"""The experiment that asks whether a stress score predicts true error: battery, faults, best of n without drawing."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finegrained_lab.experiments.predict import table as predict_table
from finegrained_lab.experiments.predict.factworld import FactWorldGrid, factworld_truth
from finegrained_lab.experiments.predict.faults import AnnotateWithFault, Fault, faulty
from finegrained_lab.experiments.predict.pool import chances, pair_accuracy, spearman
from finegrained_lab.experiments.predict.rewards import Reward
from finegrained_lab.experiments.predict.table import PREDICTORS, correlations
from finegrained_lab.experiments.predict.texts import Shown
from finegrained_lab.experiments.prompts import prompt_of
from finegrained_lab.worlds.factworld.changes import BATTERY, source_of
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld.oracle import judge
from finegrained_rlhf.feedback.outputs import OutputRecord, output_row
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.rewards.stress.changes import StressRecord, run_changes
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter

SEGMENTER = shared_segmenter(DEFAULT_SEGMENTER)
PASSAGE = ("Arlo", "The color of Arlo is blue.", "The city of Arlo is Rome.", "The tool of Arlo is saw.")
RECORD = StressRecord(
    "one",
    "Tell me about the color and the city of Arlo.",
    (PASSAGE,),
    "The color of Arlo is blue. Arlo has Rome as its city.",
)
OTHER = StressRecord(
    "two", "What is the job of Bela?", (("Bela", "The job of Bela is pilot.", "The metal of Bela is zinc."),), "It is."
)


def test_every_change_adds_the_errors_it_names_and_no_other() -> None:
    made = {change.name: change for change in run_changes([RECORD, OTHER], BATTERY) if change.record == "one"}
    assert set(made) == {change.name for change in BATTERY}
    counts = {}
    for name, change in made.items():
        judged = judge(source_of(RECORD), change.changed, SEGMENTER)
        counts[name] = (judged.relevance_errors, judged.factual_errors, len(judged.missing))
    base = judge(source_of(RECORD), RECORD.gold, SEGMENTER)
    assert (base.relevance_errors, base.factual_errors, len(base.missing)) == (0, 0, 0)
    assert counts["swap"] == (0, 1, 0) and counts["unasked"] == counts["repeat"] == (1, 0, 0)
    assert counts["drop"] == (0, 0, 1) and counts["cut"] == (1, 0, 1) and counts["empty"] == (0, 0, 2)
    assert counts["order"] == counts["form"] == (0, 0, 0)


def test_places_of_changes_hold_the_changed_segment() -> None:
    for change in run_changes([RECORD, OTHER], BATTERY):
        if change.name in ("unasked", "foreign", "repeat", "swap"):
            start, end = change.expectations[0].after or (0, 0)
            assert change.changed[start:end].endswith(".") and change.changed[start:end] != ""
            assert (change.changed[start:end] in change.base) == (change.name == "repeat")


@pytest.mark.parametrize(
    ("fault", "answer", "left"),
    [
        ("none", "The color of Arlo is red, and the tool of Arlo is saw.", (1, 1, 1)),
        ("rambling", "The color of Arlo is red, and the tool of Arlo is saw.", (0, 1, 1)),
        ("joined", "The color of Arlo is red, and the tool of Arlo is saw.", (0, 1, 1)),
        ("joined", "The color of Arlo is red. The tool of Arlo is saw.", (1, 1, 1)),
        ("popular", "The color of Arlo is red.", (0, 0, 1)),
        ("popular", "The color of Arlo is gray.", (0, 1, 1)),
        ("unstated", "The job of Arlo is pilot.", (1, 0, 2)),
        ("repeats", "The color of Arlo is blue. The color of Arlo is blue.", (0, 0, 1)),
        ("brevity", "The color of Arlo is blue.", (0, 0, 0)),
        ("stuffing", "The tool of Arlo is saw.", (0, 0, 2)),
    ],
)
def test_a_fault_hides_its_own_errors_alone(fault: Fault, answer: str, left: tuple[int, int, int]) -> None:
    source = source_of(RECORD)
    seen = faulty(judge(source, answer, SEGMENTER), fault, source)
    assert (seen.relevance_errors, seen.factual_errors, len(seen.missing)) == left


def test_feedback_with_a_fault_lacks_just_its_marks(tmp_path: Path) -> None:
    answers = ("The tool of Arlo is saw.", "The color of Arlo is red.", "Blue.", "The city of Arlo is Rome.")
    record = OutputRecord("one", RECORD.question, (Passage("", "Arlo", PASSAGE[1:]),), (RECORD.gold,), "", answers)
    outputs = tmp_path / "outputs.jsonl"
    write_jsonl(outputs, [output_row(record)])
    marked: dict[Fault, set[str]] = {"none": set(), "rambling": set()}
    for fault, types in marked.items():
        AnnotateWithFault(str(outputs), str(tmp_path / f"{fault}.json"), fault).run()
        feedback = read_feedback(tmp_path / f"{fault}.json")[0].feedback
        assert feedback is not None
        types |= {error.error_type for error in feedback.errors}
    assert marked == {"none": {"Irrelevant"}, "rambling": set()}


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fault: expected one of none, repeats"):
        AnnotateWithFault(str(tmp_path / "a"), str(tmp_path / "b"), "sleepy")  # type: ignore[arg-type]


def test_chances_are_those_of_all_draws() -> None:
    rewards = [0.5, 2.0, 0.5, -1.0, 2.0, 1.0]
    for n in (1, 2, 3, 6):
        counts = np.zeros(len(rewards))
        for drawn in itertools.combinations(range(len(rewards)), n):
            best = [i for i in drawn if rewards[i] == max(rewards[j] for j in drawn)]
            counts[best] += 1 / len(best)
        assert chances(rewards, n) == pytest.approx(counts / counts.sum())


def test_rank_correlation_and_pair_accuracy() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 25]) == pytest.approx(0.8)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    rng = random.Random(0)
    x = [rng.randint(0, 5) for _ in range(40)]
    stats = pytest.importorskip("scipy.stats")
    y = [value + rng.randint(0, 3) for value in x]
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert pair_accuracy([([1.0, 1.0, 0.0], [2.0, 1.0, 1.0])]) == pytest.approx(0.75)


def oracle_scores(shown: Shown, blind: bool = False) -> dict[str, Any]:
    """What reward models without a fault would say; blind: the factuality model finds no error."""
    scored: dict[str, Any] = {kind: {"dev": {"accuracy": 1.0}, "values": {}} for kind in FactWorldGrid.kinds}
    for name, text in shown.texts():
        judged = judge(source_of(RECORD if name == "one" else OTHER), text, SEGMENTER)
        wrong = {piece.sentence for piece in judged.sub_sentences if piece.c2 and not blind}
        pieces = [[*piece.span, -1.0 if piece.c1 else 1.0] for piece in judged.sub_sentences]
        sentences = [[*span, -1.0 if i in wrong else 1.0] for i, span in enumerate(judged.sentences)]
        for kind, row in zip(
            FactWorldGrid.kinds, (pieces, sentences, [[0, len(text), 4.0 * sum(judged.given)]]), strict=True
        ):
            scored[kind]["values"].setdefault(name, {})[text] = row
    return scored


def test_a_faultless_reward_passes_the_battery_and_a_blind_one_is_found_and_costs_truth() -> None:
    samples = (RECORD.gold, "The color of Arlo is red.", "The color of Arlo is red. The city of Arlo is Oslo.", "Arlo.")
    pool = [OutputRecord("one", RECORD.question, (Passage("", "Arlo", PASSAGE[1:]),), (RECORD.gold,), "", samples)]
    changes = [change for change in run_changes([RECORD, OTHER], BATTERY) if change.record == "one"]
    edits = {"one": ["The tool of Arlo is saw.", "The city of Arlo is Rome. The city of Arlo is Rome."]}
    shown = Shown(pool, changes, edits, {}, {"one": prompt_of(pool[0])})
    truth, weights = factworld_truth(shown), {"relevance": 0.5, "factuality": 0.5, "completeness": 0.3}
    seeing, blind = (Reward("r", weights, oracle_scores(shown, blind=flag), shown) for flag in (False, True))
    assert {name: shares["all"] for name, shares in seeing.stress().items()} == dict.fromkeys(
        [change.name for change in BATTERY], 1.0
    )
    assert blind.stress()["swap"] == {"all": 0.0, "factuality": 0.0, "total": 0.0}
    assert seeing.price() == 0.5 and seeing.on_policy_accuracy(truth) == 1.0 > blind.on_policy_accuracy(truth)
    assert seeing.disagreement([seeing]) == pytest.approx(0.0) and seeing.disagreement([blind]) > 0.01


def test_correlations_leave_size_and_noise_out_where_they_are_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_table, "DRAWS", 20)  # the intervals are not looked at
    rows = [
        dict.fromkeys(PREDICTORS, 0.0)
        | {"fault": fault, "in_battery": None, "size": size, "noise": 0, "seed": 0, "stress": s, "error_64": error}
        for size, shift in (("small", 0.0), ("medium", 10.0))
        for fault, s, error in (("a", 1 + shift, 3 + shift), ("b", 2 + shift, 2 + shift), ("c", 3 + shift, 1 + shift))
    ]
    rho = {(one["subset"], one["predictor"]): one["rho"] for one in correlations(rows, "error_64")}
    assert rho["within one size and noise", "stress"] == pytest.approx(-1.0)
    assert rho["all rewards", "stress"] == pytest.approx(19 / 35)
    assert rho["all rewards", "price"] is None
