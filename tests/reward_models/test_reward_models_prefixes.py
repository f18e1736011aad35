"""Reward models trained on prefixes: each label where its segment's end is decided, and nothing behind that is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from feedback_samples import record
from reward_model_samples import cue_records, save_longformer

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.text.segmentation import Granularity, SpacySegmenter
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models import EvaluateRewardModel, InputConfig, RewardModelConfig, TrainRewardModel
from reward_models.data.examples import LabelSettings, RewardExample, build_examples, weighted
from reward_models.encoders.inputs import RewardInputEncoder
from reward_models.encoders.models import load_reward_model, new_reward_model
from reward_models.kinds import FACTUALITY, RELEVANCE, SegmentKind
from reward_models.record import RewardModelRecord
from reward_models.training.logistic import counted_items

ANSWER = "It is the good word one two. It is the bad word one two. It is the good word one two."
BEHIND = "It is the good word one two. It is"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prefixes")
    save_longformer(path / "encoder")
    write_feedback(path / "feedback.json", cue_records(40))
    return path


def encoder(folder: Path, **settings: Any) -> RewardInputEncoder:
    return new_reward_model(folder / "encoder", RewardModelRecord("factuality", **settings)).input_encoder()


def example(of: FeedbackRecord, inputs: RewardInputEncoder, kind: SegmentKind = FACTUALITY) -> RewardExample:
    [made] = build_examples([of], LabelSettings(kind, prefixes=True), inputs, SpacySegmenter())
    return made


def test_a_label_stands_where_its_segment_is_decided(folder: Path) -> None:
    """Two further words decide a sentence: three readings of two, three and three sentences."""
    inputs, of = encoder(folder), record(ANSWER, [("It is the bad word one two.", "Unverifiable")])
    made = example(of, inputs)
    first, second, third = ANSWER.split(". ")
    sentences = [[f"{first}.", "It is"], [f"{first}.", f"{second}.", "It is"], [f"{first}.", f"{second}.", third]]
    assert list(made.inputs) == inputs.encode([FACTUALITY.parts(of.question, of.passages, cut) for cut in sentences])
    assert made.labels == (0, None, None, 1, None, None, None, 0)
    assert made.judged == (0, 3, 7) and made.segment_labels == (0, 1, 0) and made.items == 1


def test_what_follows_the_deciding_words_is_not_read(folder: Path) -> None:
    inputs = encoder(folder)
    one, other = (example(record(f"{BEHIND} {rest}"), inputs) for rest in ("a lake. It is wide.", "no 3rd? Who knows!"))
    assert one.inputs[0] == other.inputs[0] and one.inputs[-1] != other.inputs[-1]


def test_short_answers_are_read_whole(folder: Path) -> None:
    """A sub-sentence waits for eleven words: here the answer's end decides both."""
    inputs, of = encoder(folder), record("It is the good word, one two three four five six. It is the end.")
    [whole] = build_examples([of], LabelSettings(RELEVANCE), inputs, SpacySegmenter())
    made = example(of, inputs, RELEVANCE)
    assert made.inputs == whole.inputs and made.labels == whole.labels == made.segment_labels


def test_counts_and_agreement_follow_the_labels(folder: Path) -> None:
    of = record(ANSWER, [("It is the bad word one two.", "Unverifiable")])
    assert of.feedback is not None
    of = replace(of, feedback=replace(of.feedback, annotators=("ann", "ben")))
    made = example(of, encoder(folder, counts=True))
    assert made.weights == (1, 1, 1, 0, 1, 1, 1, 1)  # nobody is named for the mark: none agrees with it
    assert [row[1] for row in counted_items(made).rows] == [0, 0, 1]  # the last of its text
    assert weighted([made], True)[0].weights == pytest.approx([1.5, 1.5, 1.5, 0, 1.5, 1.5, 1.5, 1.5])


class Hasty(SpacySegmenter):
    """Promises more than it keeps."""

    def look_ahead(self, granularity: Granularity) -> int | None:
        return 0


def test_a_broken_promise_is_named(folder: Path) -> None:
    of = record("It is the good word one, two three four five six, seven eight nine ten eleven twelve.")
    with pytest.raises(ConfigError, match="looks further ahead than it declares"):
        build_examples([of], LabelSettings(RELEVANCE, prefixes=True), encoder(folder), Hasty())


def job(folder: Path, output: Path, kind: str) -> TrainRewardModel:
    rates = OptimizerConfig(lr=5e-3, weight_decay=0.01, warmup_ratio=0.1, max_grad_norm=1.0)
    config = RewardModelConfig(kind, rates, BatchConfig(8, eval_batch_size=16), steps=40, inputs=InputConfig(True))
    data, model = str(folder / "feedback.json"), str(folder / "encoder")
    return TrainRewardModel(
        data=data, model=model, output_dir=str(output), reward_model=config, validate_every=10, held_out=0.25
    )


def test_it_learns_and_is_measured_as_it_reads(folder: Path, tmp_path: Path) -> None:
    job(folder, tmp_path / "run", "factuality").run()
    assert read_json(tmp_path / "run" / "metrics.json")["dev"]["accuracy"] == 1.0
    trust = read_json(tmp_path / "run" / "trust.json")
    assert (trust["examples"], trust["items"], trust["accuracy"]) == (10, 30, 1.0)
    assert load_reward_model(tmp_path / "run").record.prefixes
    measured = [
        EvaluateRewardModel(
            path=str(tmp_path / "run"),
            data=str(folder / "feedback.json"),
            output=str(tmp_path / "out.json"),
            prefixes=prefixes,
        ).run()
        for prefixes in (None, True, False)
    ]
    assert measured[0] == measured[1] != measured[2]
    assert [report.items for report in measured] == [120, 120, 120]


def test_whole_answers_have_no_prefixes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inputs.prefixes: a completeness model scores whole answers"):
        job(folder, tmp_path / "run", "completeness")
