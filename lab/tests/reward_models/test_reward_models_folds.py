"""Folds by question, planted errors, and what a model said of each record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from feedback_samples import LAKE, record
from reward_model_samples import save_bert

from finegrained_lab.experiments.qa_feedback.intermediate import (
    MakeIntermediateFeedback,
    other_number,
    planted_record,
    without_evidence,
)
from finegrained_lab.experiments.qa_feedback.split import SplitFeedback, question_key, split_by_question
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.data.examples import LabelSettings, build_examples
from reward_models.encoders.models import new_reward_model
from reward_models.kinds import COMPLETENESS, FACTUALITY, PREFERENCE, RELEVANCE
from reward_models.record import RewardModelRecord
from reward_models.trust.items import judged_records, read_judged_records
from reward_models.trust.job import EvaluateRewardModel
from reward_models.trust.judging import judge_examples, marked_texts
from reward_models.trust.measure import trust_of


def asked(count: int) -> list[FeedbackRecord]:
    """Records of `count` questions; every third question is asked twice, in other letters the second time."""
    found = []
    for i in range(count):
        one = replace(record("It is cold. It is wide.", name=f"r{i}"), question=f"What is number {i} like?")
        found += [one, replace(one, id=f"r{i}b", question=f"what is  NUMBER {i} like?")] if i % 3 == 0 else [one]
    return found


def test_no_question_is_on_two_sides_and_order_does_not_matter() -> None:
    records = asked(23)
    folds = split_by_question(records, 5, 0.2, seed=3)
    assert sorted(r.id for fold in folds for r in fold.test) == sorted(r.id for r in records)
    for fold in folds:
        sides = [{question_key(r.question) for r in part} for part in (fold.test, fold.tune, fold.fit)]
        assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
        assert {r.id for r in fold.train} == {r.id for r in (*fold.tune, *fold.fit)}
        assert len(fold.train) + len(fold.test) == len(records) and fold.tune and 3 < len(fold.test) < 10
    again = split_by_question(records[::-1], 5, 0.2, seed=3)
    assert [{r.id for r in f.test} for f in again] == [{r.id for r in f.test} for f in folds]
    other = split_by_question(records, 5, 0.2, seed=4)
    assert [{r.id for r in f.test} for f in other] != [{r.id for r in f.test} for f in folds]


def test_files_of_folds(tmp_path: Path) -> None:
    write_feedback(tmp_path / "all.json", asked(12))
    SplitFeedback(str(tmp_path / "all.json"), str(tmp_path / "folds"), folds=3, tuning=0.2, sizes=(2, 4)).run()
    for fold in range(3):
        parts = {p.stem: [r.id for r in read_feedback(p)] for p in (tmp_path / "folds" / f"fold_{fold}").iterdir()}
        assert parts.keys() == {"train", "test", "tune", "fit", "train_2", "train_4"}
        assert parts["train_4"][-2:] == parts["train_2"] and not set(parts["train_4"]) & set(parts["tune"])
        assert parts["tune"] + parts["fit"] == parts["train"]
    with pytest.raises(DataError, match=r"all.json.*sizes: a fold has \d+ training records, asked for 99"):
        SplitFeedback(str(tmp_path / "all.json"), str(tmp_path / "more"), folds=3, sizes=(99,)).run()
    with pytest.raises(DataError, match="12 questions, expected at least 13 for 13 folds"):
        SplitFeedback(str(tmp_path / "all.json"), str(tmp_path / "more"), folds=13).run()
    assert not (tmp_path / "more").exists()


def test_planted_errors_are_where_they_are_marked() -> None:
    gold = "The lake is 3 kilometres wide. Its water stays cold all the year round. Nobody swims in it."
    passages = (replace(LAKE, spans=("The lake is 3 kilometres wide, not 7.", *LAKE.sentences[1:])),)
    source = replace(record("It is cold."), gold=gold, passages=passages)
    other = replace(
        record("A mill.", passages=()), question="Who burnt the mill?", gold="A farmer burnt the mill. It was old."
    )
    types: set[str] = set()
    for seed in range(40):
        made = planted_record(source, [other], SpacySegmenter(), np.random.default_rng(seed), rate=1.0)
        text = made.predictions[0]
        assert made.predictions[1] == gold and made.feedback.corrected_prediction == gold
        for error in made.feedback.errors:
            piece = text[error.start : error.end]
            types.add(error.error_type)
            if error.error_type == "Wrong-Grounding":
                assert piece == "The lake is 7 kilometres wide."
            elif error.error_type == "Redundant":
                assert text.count(piece) == 2
            elif error.error_type == "Irrelevant":
                assert piece not in gold
            else:
                assert piece in gold and sum(len(p.sentences) for p in made.passages) < 3
    assert types == {"Wrong-Grounding", "Unverifiable", "Irrelevant", "Redundant"}
    clean = planted_record(source, [other], SpacySegmenter(), np.random.default_rng(0), rate=0.0)
    assert clean.predictions[0] == gold and not clean.feedback.errors and clean.preferences[0] == 0


def test_every_kind_makes_labels_of_planted_errors(tmp_path: Path) -> None:
    golds = [
        "The lake is three kilometres wide at its widest point. Its water stays cold.",
        "Nobody has been seen swimming.",
    ]
    records = [replace(r, gold=golds[i % 2]) for i, r in enumerate(asked(12))]
    write_feedback(tmp_path / "all.json", records)
    MakeIntermediateFeedback(str(tmp_path / "all.json"), str(tmp_path / "made.json"), copies=2, rate=0.6).run()
    made = read_feedback(tmp_path / "made.json")
    assert len(made) == 2 * len(records) == len({r.id for r in made})
    for kind in (RELEVANCE, FACTUALITY):
        labels = [label for r in made for label in kind.labels(r, SpacySegmenter()).labels]
        assert 0 in labels and 1 in labels
    for pairs in (COMPLETENESS.pairs(made, SpacySegmenter()), PREFERENCE.pairs(made, SpacySegmenter())):
        assert pairs.pairs
    assert all(
        made[0].predictions[pair.better] == made[0].gold for pair in PREFERENCE.pairs(made[:1], SpacySegmenter()).pairs
    )


def test_helpers_of_planting() -> None:
    generator = np.random.default_rng(0)
    assert other_number("It is 3 km and 33 m.", [replace(LAKE, spans=("Of 3 and 33.",))], generator) is None
    assert other_number("It is wide.", [LAKE], generator) is None
    left, removed = without_evidence("Its water stays cold.", [LAKE])
    assert removed and left[0].sentences == (LAKE.sentences[0], LAKE.sentences[2])
    assert without_evidence("A mill burnt.", [LAKE]) == ((replace(LAKE),), False)


@pytest.mark.parametrize("name", ["relevance", "preference"])
def test_judged_records_hold_what_the_report_is_made_of(name: str, tmp_path: Path) -> None:
    model = new_reward_model(save_bert(tmp_path / "m"), RewardModelRecord(name, max_length=160, mean=0.0, std=1.0))  # type: ignore[arg-type]
    (tmp_path / "saved").mkdir()
    model.save(tmp_path / "saved")
    marked = record(
        "It is cold and wide and deep. It was warm; not so, they say.",
        [("It was warm; not so, they say.", "Irrelevant")],
    )
    records = [replace(marked, id=f"r{i}", question=f"What is it {'like ' * i}?") for i in range(4)]
    write_feedback(tmp_path / "all.json", records)
    report = EvaluateRewardModel(
        str(tmp_path / "saved"),
        str(tmp_path / "all.json"),
        str(tmp_path / "report.json"),
        items=str(tmp_path / "judged.jsonl"),
    ).run()
    judged = read_judged_records(tmp_path / "judged.jsonl")
    assert [row.record for row in judged] == [f"r{i}" for i in range(4)]
    right = sum(
        sum(t == c for t, c in zip(r.has_error, r.claims, strict=True)) + sum(g > 0 for g in r.gaps) for r in judged
    )
    assert right / report.items == pytest.approx(report.accuracy)
    if report.span is not None:
        assert (
            sum(r.claimed for r in judged) == report.span.claimed
            and sum(r.annotated for r in judged) == report.span.annotated
        )
    examples = build_examples(records, LabelSettings(model.record.definition), model.input_encoder(), SpacySegmenter())
    texts = marked_texts(records, LabelSettings(model.record.definition), SpacySegmenter())
    said = judge_examples(model, examples, 8, Processes())
    again = trust_of(model.record.kind, examples, texts, said)
    assert (again.accuracy, again.confusion, again.span) == (report.accuracy, report.confusion, report.span)
    for ours, theirs in zip(judged_records(examples, texts, said), judged, strict=True):
        assert ours.record == theirs.record and ours.gaps == pytest.approx(theirs.gaps, abs=1e-5)
