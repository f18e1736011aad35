"""Trust in reward models: calibration, spans, reports that agree with training, scoring and any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from feedback_samples import LAKE, record
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_model_samples import cue_records, enlarged, prompt, save_longformer

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.feedback.labels import SegmentLabels
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.metrics.detection import Confusion, harmonic_mean
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models.config import RewardModelConfig
from reward_models.data.examples import LabelSettings, RewardExample, build_examples
from reward_models.encoders.inputs import RewardInputEncoder, pad_inputs
from reward_models.encoders.models import RewardModel, load_reward_model, new_reward_model
from reward_models.job import TrainRewardModel
from reward_models.kinds import FACTUALITY, PREFERENCE, RELEVANCE, kind_named
from reward_models.record import RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer
from reward_models.train import with_moments
from reward_models.trust.calibration import calibration
from reward_models.trust.evaluate import label_settings
from reward_models.trust.job import EvaluateRewardModel
from reward_models.trust.judging import MarkedText, SegmentVerdicts, marked_texts, segment_verdicts
from reward_models.trust.measure import (
    TrustReport,
    claimed_runs,
    covered,
    measure_trust,
    pair_trust,
    segment_trust,
    span_scores,
)

SEGMENTER = SpacySegmenter()


# Detection and calibration --------------------------------------------------------------------------------------------


def test_confusion_by_hand() -> None:
    counts = Confusion.of(
        [True, True, True, False, False, False, False], [True, True, False, True, False, False, False]
    )
    assert counts == Confusion(found=2, missed=1, false_alarms=1, clean=3)
    assert (counts.items, counts.errors, counts.claims) == (7, 3, 3)
    assert (counts.accuracy, counts.precision, counts.recall) == (5 / 7, 2 / 3, 2 / 3)
    assert counts.false_alarm_rate == 1 / 4 and Confusion(1, 1, 0, 0).false_alarm_rate is None
    assert counts.f1 == pytest.approx(2 / 3) == harmonic_mean(2 / 3, 2 / 3)
    nothing = Confusion(0, 0, 0, 0)
    assert (nothing.accuracy, nothing.precision, nothing.recall, nothing.f1) == (None,) * 4
    assert Confusion(0, 2, 0, 5).precision is None and Confusion(0, 2, 0, 5).f1 == 0.0
    assert harmonic_mean(0.5, 1.0) == pytest.approx(2 / 3) and harmonic_mean(0.0, 0.0) == 0.0
    with pytest.raises(ValueError):
        Confusion.of([True], [])


def test_calibration_by_hand() -> None:
    """Two bins: (0.2 + 0.4) / 2 predicted, 1 of 2 true; (0.6 + 0.9 + 0.9) / 3 predicted, 2 of 3 true."""
    found = calibration([0.2, 0.9, 0.4, 0.6, 0.9], [True, True, False, False, True], bins=2)
    assert [row.count for row in found.bins] == [2, 3]
    assert [row.predicted for row in found.bins] == pytest.approx([0.3, 0.8])
    assert [row.observed for row in found.bins] == pytest.approx([1 / 2, 2 / 3])
    assert found.ece == pytest.approx(2 / 5 * 0.2 + 3 / 5 * (0.8 - 2 / 3))
    perfect = calibration([0.0, 1.0, 1.0], [False, True, True])
    assert perfect.ece == 0.0 and [row.count for row in perfect.bins] == [1, *[0] * 8, 2]
    assert perfect.bins[4].predicted is None and perfect.bins[4].observed is None
    assert calibration([], []).ece is None


def test_an_edge_belongs_to_the_bin_below_it() -> None:
    found = calibration([0.0, 0.1, 0.2, 0.3, 0.5, 1.0], [True] * 6)
    assert [row.count for row in found.bins] == [2, 1, 1, 0, 1, 0, 0, 0, 0, 1]
    halves = calibration([0.5, 0.55, 0.56, 1.0], [True] * 4, low=0.5)
    assert [row.count for row in halves.bins] == [2, 1, *[0] * 7, 1]
    assert (halves.bins[0].low, halves.bins[0].high, halves.bins[9].high) == (0.5, 0.55, 1.0)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1) | st.sampled_from([i / 10 for i in range(11)]), st.booleans()), min_size=1))
def test_ece_equals_a_naive_loop(items: list[tuple[float, bool]]) -> None:
    """Guo et al. 2017: Σ_m |B_m| / n · |acc(B_m) − conf(B_m)|, B_m the items in ((m − 1) / M, m / M]."""
    expected = 0.0
    for m in range(1, 11):
        low, high = (m - 1) / 10, m / 10
        inside = [(p, y) for p, y in items if low < p <= high or (m == 1 and p == 0)]
        if inside:
            right = sum(1 for _, y in inside if y) / len(inside)
            sure = sum(p for p, _ in inside) / len(inside)
            expected += len(inside) / len(items) * abs(right - sure)
    assert calibration([p for p, _ in items], [y for _, y in items]).ece == pytest.approx(expected, abs=1e-9)


def test_calibration_refuses_what_is_no_probability() -> None:
    for p, y in (([0.2], []), ([1.2], [True]), ([-0.1], [True]), ([float("nan")], [True])):
        with pytest.raises(ValueError):
            calibration(p, y)
    with pytest.raises(ValueError):
        calibration([0.4], [True], low=0.5)


# Spans ----------------------------------------------------------------------------------------------------------------

TEXT = "aaaa bbbb cccc dd ee"
PIECES = ((0, 4), (5, 9), (10, 14), (15, 17), (18, 20))


def marked(labels: Sequence[int | None], *spans: tuple[int, int]) -> MarkedText:
    return MarkedText(TEXT, SegmentLabels(PIECES, tuple(labels)), spans)


def test_coverage_leaves_white_space_out() -> None:
    assert covered(TEXT, [(0, 9)], [(5, 9)]) == 0.5
    assert covered(TEXT, [(3, 11)], [(0, 4), (4, 5), (10, 20)]) == pytest.approx(2 / 6)
    assert covered(TEXT, [(0, 4)], []) == 0.0 and covered(TEXT, [(0, 4)], [(0, 3), (2, 4)]) == 1.0


def test_neighbouring_claims_are_one_span_and_an_unlabelled_segment_ends_it() -> None:
    assert claimed_runs((0, 1, 0, 0, 1), (True, True, False, True, True)) == [[0, 1], [3, 4]]
    assert claimed_runs((0, None, 0, 0, None), (True, True, True, False, True)) == [[0], [2]]
    assert claimed_runs((), ()) == []


def test_spans_by_hand() -> None:
    # Marked: "bbbb cc" (6 characters) and "dd". Claimed: "aaaa bbbb" (half of it labelled) and "ee" (not labelled).
    first = marked((0, 1, 1, 1, 0), (5, 12), (15, 17)), (True, True, False, False, True)
    # Marked: "a" of the first segment, so that all of it is labelled and the claim of it is right.
    second = marked((1, 0, 0, None, 0), (0, 1)), (True, False, False, True, False)
    scores = span_scores([first[0], second[0]], [first[1], second[1]])
    assert (scores.annotated, scores.claimed) == (3, 3)
    assert scores.recall == pytest.approx(2 / 3)  # 4 of the 6 characters of "bbbb cc"; "dd" is missed; "a" is found
    assert scores.precision == pytest.approx(2 / 3)  # "ee" is wrong
    assert scores.f1 == pytest.approx(2 / 3)
    none = span_scores([first[0]], [(False,) * 5])
    assert (none.precision, none.recall, none.f1, none.claimed) == (0.0, 0.0, 0.0, 0)


def test_less_than_half_is_neither_found_nor_right() -> None:
    text = marked((0, 0, 1, 0, 0), (10, 14))
    scores = span_scores([text], [(False, True, True, True, True)])  # 4 of 12 characters of the claim
    assert (scores.precision, scores.recall) == (0.0, 1.0)
    missed = span_scores([marked((1, 1, 1, 0, 0), (0, 14))], [(True, False, False, False, False)])  # 4 of 12 claimed
    assert (missed.precision, missed.recall) == (1.0, 0.0)


@pytest.mark.parametrize("kind", ["relevance", "factuality"])
def test_a_model_that_predicts_every_label_is_perfect_on_human_feedback(shared_data: Path, kind: str) -> None:
    records = read_feedback(shared_data / "qa_feedback" / "dev_feedback.json")
    texts = marked_texts(records, LabelSettings(kind_named(kind)), SEGMENTER)
    assert texts is not None and len(texts) == {"relevance": 400, "factuality": 347}[kind]
    right = [tuple(label == 1 for label in text.segments.labels) for text in texts]
    verdicts = [SegmentVerdicts(tuple(map(float, row)), row) for row in right]
    report = segment_trust(kind, texts, verdicts)
    assert report.span is not None and (report.span.precision, report.span.recall) == (1.0, 1.0)
    assert report.span.annotated > report.span.claimed > 100
    assert (report.accuracy, report.calibration.ece) == (1.0, 0.0)


def test_marks_follow_the_labelling_rules() -> None:
    text = "It is cold, wide and deep enough for all. It was warm once upon a time."
    errors = [
        ("It is cold", "Irrelevant"),  # three words: dropped from C1
        ("It was warm once upon", "Redundant"),
        ("It was warm once upon", "Incoherent"),  # the same span twice
        ("deep", "Wrong-Grounding"),
    ]
    both = [record(text, errors), record("It was warm once upon a time.", [("It was warm once upon", "Redundant")])]
    relevance = marked_texts(both, LabelSettings(RELEVANCE), SEGMENTER)
    start = text.index("It was warm")
    assert relevance is not None
    assert [found.marked for found in relevance] == [((start, start + 21),), ((0, 21),)]
    short = marked_texts(both[:1], LabelSettings(RELEVANCE.with_min_words(0)), SEGMENTER)
    assert short is not None and short[0].marked == ((0, 10), (start, start + 21))
    factuality = marked_texts(both, LabelSettings(FACTUALITY), SEGMENTER)
    assert factuality is not None and len(factuality) == 1  # the second record teaches nothing about facts
    assert factuality[0].marked == ((text.index("deep"), text.index("deep") + 4),)
    assert factuality[0].segments.labels == (1, None)
    assert marked_texts(both, LabelSettings(PREFERENCE), SEGMENTER) is None


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trust")
    save_longformer(path / "encoder")
    write_feedback(path / "feedback.json", cue_records(40))
    return path


def opinionated(folder: Path, kind: str) -> RewardModel:
    torch.manual_seed(0)
    return enlarged(new_reward_model(folder / "encoder", RewardModelRecord(kind, "first", mean=0.0, std=1.0))).eval()


def varied(count: int) -> list[FeedbackRecord]:
    """Feedback on answers of one to three sentences, some without a label for facts."""
    sentences = ["It is the good word one two.", "It is the bad word two.", "It was warm; not so, they say of it."]
    kinds = ["Irrelevant", "Unverifiable", "Wrong-Grounding"]
    return [
        record(
            " ".join(sentences[: 1 + i % 3]),
            [(sentences[0], kinds[i % 3])] if i % 4 else [],
            preferences=tuple((i + j) % 3 for j in range(6)),
            passages=(LAKE,),
            name=f"r{i}",
        )
        for i in range(count)
    ]


def labelled(model: RewardModel, records: Sequence[FeedbackRecord]) -> tuple[list[RewardExample], list | None]:
    settings = LabelSettings(model.record.definition)
    examples = build_examples(records, settings, RewardInputEncoder(model.tokenizer, model.max_length), SEGMENTER)
    return examples, marked_texts(records, settings, SEGMENTER)


def undecided(model: RewardModel, examples: Sequence[RewardExample]) -> None:
    """Shift the head so that some segments are claimed and some are not."""
    with torch.no_grad():
        logits = torch.cat([model.segment_logits(pad_inputs(example.inputs, 0)) for example in examples])
        model.model.classifier.bias[1] -= (logits[:, 1] - logits[:, 0]).mean()


@pytest.mark.parametrize("kind", ["relevance", "factuality"])
def test_verdicts_are_those_of_the_scorer_and_of_single_inputs(folder: Path, tmp_path: Path, kind: str) -> None:
    model = opinionated(folder, kind)
    records = varied(9)
    examples, texts = labelled(model, records)
    undecided(model, examples)
    model.save(tmp_path / "model")
    verdicts = segment_verdicts(model, [example.inputs[0] for example in examples], batch_size=4)
    responses = [text.text for text in texts or ()]
    scores = SegmentScorer(str(tmp_path / "model")).score([prompt(passages=(LAKE,))] * len(responses), responses)
    assert responses and [tuple(value < 0 for value in row) for row in scores.values] == [v.claims for v in verdicts]
    assert {claim for verdict in verdicts for claim in verdict.claims} == {True, False}
    for example, verdict in zip(examples, verdicts, strict=True):
        with torch.no_grad():
            logits = model.segment_logits(pad_inputs(example.inputs, 0)).tolist()
        odds = [torch.tensor(has_error - no_error).sigmoid().item() for no_error, has_error in logits]
        assert list(verdict.probabilities) == pytest.approx(odds, abs=1e-4)


def test_pairs_by_hand() -> None:
    """Gaps 2 and −1 in the first record, 0 in the second: one right of three; a tie has probability a half."""
    report = pair_trust("preference", [((0, 1), (2, 1)), ((1, 0),)], [[3.0, 1.0, 0.0], [5.0, 5.0]])
    assert (report.examples, report.items, report.accuracy) == (2, 3, 1 / 3)
    curve = report.calibration
    assert (curve.bins[0].low, curve.bins[0].count, curve.bins[0].predicted, curve.bins[0].observed) == (0.5, 1, 0.5, 0)
    sure, unsure = 0.880797, 0.731059  # 1 / (1 + e⁻²), 1 / (1 + e⁻¹)
    assert [(row.predicted, row.observed) for row in curve.bins if row.count][1:] == [
        (pytest.approx(unsure, abs=1e-6), 0.0),
        (pytest.approx(sure, abs=1e-6), 1.0),
    ]
    assert curve.ece == pytest.approx((0.5 + unsure + (1 - sure)) / 3, abs=1e-6)
    assert {"confusion", "span", "precision"}.isdisjoint(report.to_json("x"))


def test_pair_scores_reach_their_pairs(folder: Path, tmp_path: Path) -> None:
    model = opinionated(folder, "preference")
    model.save(tmp_path / "model")
    records = varied(7)
    report = measure_trust(model, *labelled(model, records), 3, Processes())
    scorer = SequenceScorer(str(tmp_path / "model"))
    right = total = 0
    for one in records:
        values = [v[0] for v in scorer.score([prompt()] * 4, list(one.predictions)).values]
        for (i, j), preference in zip([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], one.preferences, strict=True):
            total += preference != 0
            right += preference == 1 and values[i] > values[j] or preference == 2 and values[j] > values[i]
    assert report.items == total and report.accuracy == pytest.approx(right / total) and 0 < right < total


class NotAllHere(Exception):
    """The other processes have not gathered yet."""


class OneOf(Processes):
    """One of several processes, run one after the other; the last one to gather has what all of them gave."""

    def __init__(self, rank: int, count: int, parts: dict[int, list]) -> None:
        super().__init__()
        self.rank, self.count, self.parts = rank, count, parts

    def gather_objects(self, items: Sequence[Any]) -> list[Any]:
        self.parts[self.rank] = list(items)
        if len(self.parts) < self.count:
            raise NotAllHere
        return [item for rank in range(self.count) for item in self.parts[rank]]


@pytest.mark.parametrize("kind", ["relevance", "preference"])
def test_processes_share_the_work_and_agree(folder: Path, kind: str) -> None:
    model = opinionated(folder, kind)
    examples, texts = labelled(model, varied(8))
    whole = measure_trust(model, examples, texts, 4, Processes())
    parts: dict[int, list] = {}
    for rank in (1, 2):
        with pytest.raises(NotAllHere):
            measure_trust(model, examples, texts, 4, OneOf(rank, 3, parts))
    report = measure_trust(model, examples, texts, 4, OneOf(0, 3, parts))
    assert [len(parts[rank]) for rank in range(3)] == [3, 3, 2]
    assert flat(report) == pytest.approx(flat(whole), abs=1e-5)


def flat(report: TrustReport) -> list[float]:
    values = report.to_json("x")
    bins = [row[key] for row in values["calibration"]["bins"] for key in ("count", "predicted", "observed")]
    numbers = [values["accuracy"], values["calibration"]["ece"], *(-1.0 if b is None else b for b in bins)]
    return [*numbers, *values.get("confusion", {}).values(), *values.get("span", {}).values()]


def test_texts_of_other_records_are_refused(folder: Path) -> None:
    model = opinionated(folder, "relevance")
    examples, texts = labelled(model, varied(4))
    with pytest.raises(ValueError, match="not those of the examples"):
        measure_trust(model, examples, (texts or [])[::-1], 4, Processes())
    for wrong in ([], None), (examples, None):
        with pytest.raises(ValueError, match="needs examples"):
            measure_trust(model, *wrong, 4, Processes())  # type: ignore[arg-type]


# Jobs -----------------------------------------------------------------------------------------------------------------


def train(folder: Path, output: Path, kind: str, steps: int = 30, **changes: Any) -> TrainRewardModel:
    config = RewardModelConfig(
        kind,
        OptimizerConfig(lr=5e-3, weight_decay=0.01, warmup_ratio=0.1, max_grad_norm=1.0),
        BatchConfig(batch_size=8, eval_batch_size=16),
        steps=steps,
        global_attention="first" if kind == "preference" else "none",
    )
    fields = {"validate_every": 10, "checkpoint_every": 10, "held_out": 0.25, "reward_model": config, **changes}
    return TrainRewardModel(
        data=str(folder / "feedback.json"), model=str(folder / "encoder"), output_dir=str(output), **fields
    )


@pytest.mark.parametrize("kind", ["relevance", "preference"])
def test_training_writes_the_trust_of_its_best_model(folder: Path, tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    train(folder, run, kind).run()
    trust, metrics = read_json(run / "trust.json"), read_json(run / "metrics.json")
    assert trust["reward_model"] == kind and trust["data"] == str(folder / "feedback.json")
    assert trust["examples"] == metrics["dev_examples"] == 10
    assert trust["accuracy"] == pytest.approx(metrics["dev"]["accuracy"])
    assert sum(row["count"] for row in trust["calibration"]["bins"]) == trust["items"]
    assert len(trust["calibration"]["bins"]) == 10
    if kind == "relevance":
        assert trust["f1"] == pytest.approx(metrics["dev"]["f1_has_error"]) and trust["items"] == 30
        assert sum(trust["confusion"].values()) == 30
        assert set(trust["span"]) == {"precision", "recall", "f1", "annotated", "claimed"}
        assert min(trust["f1"], trust["span"]["f1"]) > 0.7  # the cue is learned
    before = read_json(run / "trust.json")
    (run / "trust.json").unlink()
    train(folder, run, kind).run()  # already done: measured again
    assert read_json(run / "trust.json") == before


def test_a_control_with_shuffled_labels_is_held_against_the_true_ones(folder: Path, tmp_path: Path) -> None:
    errors = []
    for name, shuffle in (("true", False), ("control", True)):
        job = train(folder, tmp_path / name, "relevance")
        replace(job, reward_model=replace(job.reward_model, shuffle_labels=shuffle)).run()
        found = read_json(tmp_path / name / "trust.json")
        errors.append((found["items"], found["confusion"]["found"] + found["confusion"]["missed"]))
    assert errors[0] == errors[1]
    assert (
        read_json(tmp_path / "control" / "trust.json")["f1"] < 0.7 < read_json(tmp_path / "true" / "trust.json")["f1"]
    )


def test_nothing_is_written_where_nothing_can_be_compared(folder: Path, tmp_path: Path) -> None:
    write_feedback(tmp_path / "ties.json", [record("It is cold.", preferences=(0,) * 6)])
    run = tmp_path / "run"
    train(folder, run, "preference", steps=2, validation_data=str(tmp_path / "ties.json")).run()
    assert (run / "metrics.json").exists() and not (run / "trust.json").exists()
    job = EvaluateRewardModel(str(run), str(tmp_path / "ties.json"), str(tmp_path / "out.json"))
    with pytest.raises(DataError, match=r"ties\.json.*no record gives a preference label to compare with \(1 read\)"):
        job.run()
    assert not (tmp_path / "out.json").exists()


def test_evaluating_on_the_dev_file_gives_what_training_wrote(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, dev = tmp_path / "run", tmp_path / "dev.json"
    write_feedback(dev, varied(12))
    train(folder, run, "relevance", steps=5, validation_data=str(dev)).run()
    capsys.readouterr()
    report = EvaluateRewardModel(str(run), str(dev), str(tmp_path / "deep" / "out.json"), batch_size=2).run()
    values, trained = read_json(tmp_path / "deep" / "out.json"), read_json(run / "trust.json")
    assert values["confusion"] == trained["confusion"] and values["span"] == trained["span"]
    assert values["calibration"]["ece"] == pytest.approx(trained["calibration"]["ece"], abs=1e-5)
    assert values == report.to_json(str(dev))
    page = capsys.readouterr().out
    assert f"relevance: {values['items']} labelled segments of 12 records in {dev}" in page
    assert f"{values['accuracy']:.3f}" in page and "0.90–1.00" in page and "spans marked" in page


def test_labels_are_made_as_in_the_run_unless_told_otherwise(folder: Path, tmp_path: Path) -> None:
    model = opinionated(folder, "relevance")
    model.save(tmp_path / "model")
    job = EvaluateRewardModel(str(tmp_path), "data.json", "out.json")
    assert label_settings(job, RELEVANCE) == LabelSettings(RELEVANCE, "original")
    (tmp_path / "config.yaml").write_text("completeness: {matching: token_f1}\nreward_model: {min_span_words: 2}\n")
    assert label_settings(job, RELEVANCE) == LabelSettings(RELEVANCE.with_min_words(2), "token_f1")
    told = replace(job, matching="original", min_span_words=0)
    assert label_settings(told, RELEVANCE) == LabelSettings(RELEVANCE.with_min_words(0), "original")
    write_feedback(tmp_path / "data.json", [record("It is cold now.", [("cold now", "Irrelevant")])])
    found = [
        replace(job, data=str(tmp_path / "data.json"), output=str(tmp_path / "o.json"), min_span_words=words).run()
        for words in (None, 3)
    ]
    assert [report.confusion.errors for report in found if report.confusion] == [1, 0]


def test_scores_that_hardly_differ_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, records = opinionated(folder, "preference"), varied(4)
    assert with_moments(model, records, 8, Processes()).std > 1e-3 and not caplog.records
    with torch.no_grad():
        model.model.classifier.out_proj.weight *= 1e-6
    assert 0 < with_moments(model, records, 8, Processes()).std < 1e-3
    assert "preference: the scores of the training outputs have a standard deviation" in caplog.text


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    for change in ({"matching": "exact"}, {"batch_size": 0}, {"min_span_words": -1}):
        with pytest.raises(ConfigError):
            EvaluateRewardModel("a", "b", "c", **change)


def test_a_model_made_elsewhere_needs_its_kind(folder: Path, tmp_path: Path) -> None:
    model = opinionated(folder, "factuality")
    model.save(tmp_path / "model")
    (tmp_path / "model" / "reward_model.json").unlink()
    write_feedback(tmp_path / "data.json", varied(4))
    job = EvaluateRewardModel(
        str(tmp_path / "model"), str(tmp_path / "data.json"), str(tmp_path / "o.json"), kind="factuality"
    )
    assert job.run().reward_model == "factuality"
    assert load_reward_model(tmp_path / "model", RewardModelRecord("factuality")).record.kind == "factuality"
