"""Counted words: each by hand, the layer that adds them, the regression that it is fitted by, and what is read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from feedback_samples import LAKE, record
from reward_model_samples import save_bert, save_llama, save_longformer

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models.config import RewardModelConfig
from reward_models.data.examples import LabelSettings, build_examples
from reward_models.encoders.counts import CountLayer, count_names, word_counts
from reward_models.encoders.inputs import RewardInputEncoder, pad_inputs
from reward_models.encoders.models import load_reward_model, new_reward_model
from reward_models.job import TrainRewardModel
from reward_models.kinds import COMPLETENESS, FACTUALITY, KINDS, RELEVANCE, kind_named
from reward_models.parts import answer_parts, choose, content_words, factuality_parts, relevance_parts, sentences_of
from reward_models.record import RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer
from reward_models.train import set_counts
from reward_models.training.logistic import CountedItems, balanced_weights, counted_items, fit_counts, newton

QUESTION = "What is the lake like?"


def test_counts_of_segments_by_hand() -> None:
    rows = word_counts(RELEVANCE, relevance_parts(QUESTION, ["The lake is cold,", "cold and deep water."]))
    # content words: {lake, cold}, of which the question has one; {cold, deep, water}, of which one was said
    assert rows[0] == pytest.approx((0.0, 0.0, 0.2, math.log(5), 0.4, 0.0, -1.0))
    assert rows[1] == pytest.approx((0.1, 1.0, 0.2, math.log(5), 0.4, -1.0, -1 / 3))
    assert all(len(row) == len(count_names(RELEVANCE)) for row in rows)


def test_counts_against_passages_by_hand() -> None:
    (row,) = word_counts(FACTUALITY, factuality_parts(QUESTION, [LAKE], ["Its cold lake is 5 kilometres deep."]))
    named = dict(zip(count_names(FACTUALITY), row, strict=True))
    # {cold, lake, 5, kilometres, deep}: lake and kilometres in the first sentence, cold in the second
    assert named["sentence"] == pytest.approx(2 * 2 / 5 - 1) and named["passages"] == pytest.approx(2 * 3 / 5 - 1)
    assert named["numbers"] == -1 and named["bigrams"] == pytest.approx(2 * 1 / 6 - 1)  # "lake is"


def test_counts_of_an_answer_and_without_passages() -> None:
    (row,) = word_counts(COMPLETENESS, answer_parts(QUESTION, [LAKE], "The lake stays cold cold."))
    named = dict(zip(count_names(COMPLETENESS), row, strict=True))
    assert named["words"] == 0.05 and named["variety"] == pytest.approx(2 * 4 / 5 - 1)
    assert named["answered"] == 0.0  # of {lake, like} one
    (bare,) = word_counts(COMPLETENESS, answer_parts(QUESTION, [], "The lake stays cold cold."))
    assert bare[1] == 0.05 and bare[4:7] == (-1.0, -1.0, -1.0) and len(bare) == len(row)


def test_the_regression_is_the_minimum_that_another_optimiser_finds() -> None:
    generator = np.random.default_rng(0)
    rows, weights = generator.normal(size=(60, 4)), generator.uniform(0.5, 2, size=60)
    labels = (rows @ [1.0, -2.0, 0.0, 0.5] + 0.3 + generator.normal(size=60) > 0).astype(float)
    found = newton(rows, labels, weights, ridge=2.0, intercept=True)
    other = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    x, y, w = (torch.tensor(value) for value in (np.hstack([rows, np.ones((60, 1))]), labels, weights))
    optimiser = torch.optim.LBFGS([other], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ other, y, weight=w, reduction="sum")
        total = loss + 1.0 * other[:4].square().sum()
        total.backward()
        return total

    optimiser.step(closure)
    np.testing.assert_allclose(found, other.detach().numpy(), atol=1e-4)


def test_what_is_fitted_does_not_depend_on_units_and_ignores_other_columns() -> None:
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(80, 3))
    labels = (rows[:, 0] > 0.2).astype(float)
    scaled = rows * [10.0, 1.0, 0.1] + [5.0, 0.0, 1.0]
    parts = [slice(i, i + 4) for i in range(0, 80, 4)]
    plain = fit_counts([CountedItems(rows[p], labels[p]) for p in parts], range(3), pairs=False)
    other = fit_counts([CountedItems(scaled[p], labels[p]) for p in parts], range(3), pairs=False)
    np.testing.assert_allclose(plain.logits(rows), other.logits(scaled), atol=1e-6)
    blind = fit_counts([CountedItems(rows[p], labels[p]) for p in parts], [1, 2], pairs=False)
    assert blind.weights[0] == 0 and ((plain.logits(rows) > 0) == (labels > 0)).mean() > 0.9


@pytest.mark.parametrize("base", [save_bert, save_longformer, save_llama])
@pytest.mark.parametrize("name", ["factuality", "completeness"])
def test_a_model_adds_what_was_fitted_and_keeps_it_on_disk(base: object, name: str, tmp_path: Path) -> None:
    assert callable(base)
    directory = base(tmp_path / "encoder")
    model = new_reward_model(directory, RewardModelRecord(name, max_length=160, counts=True, mean=0.0, std=1.0))
    answers = ("It is wide. It stays cold all the year round. Nobody swims.", "It is cold.", "It is not.")
    marked = [record(f"{a} Yes, it is warm.", [("Yes, it is warm.", "Unverifiable")], correction=a) for a in answers]
    examples = build_examples(marked, LabelSettings(kind_named(name)), model.input_encoder(), SpacySegmenter())
    batch = pad_inputs([item for example in examples for item in example.inputs], model.pad_id)
    outputs = model.segment_logits if model.record.labels_segments else model.answer_scores
    with torch.no_grad():
        before = outputs(batch)
        set_counts(model.counts, model, examples, balanced=True)
        after = outputs(batch)
    fitted = fit_counts([counted_items(e) for e in examples], range(model.counts.in_features), name == "completeness")
    rows = np.array([row for example in examples for item in example.inputs for row in item.counts])
    odds = after[:, 1] - after[:, 0] if model.record.labels_segments else after
    start = before[:, 1] - before[:, 0] if model.record.labels_segments else before
    np.testing.assert_allclose((odds - start).numpy(), fitted.logits(rows), atol=1e-4)
    assert np.abs(fitted.logits(rows)).max() > 0.1 and not any(p.requires_grad for p in model.counts.parameters())
    (tmp_path / "saved").mkdir()
    model.save(tmp_path / "saved")
    with torch.no_grad():
        again = load_reward_model(tmp_path / "saved")
        assert torch.allclose(getattr(again, outputs.__name__)(batch), after, atol=1e-6)
    scorer = (SegmentScorer if again.record.labels_segments else SequenceScorer)(str(tmp_path / "saved"))
    asked = Prompt("p", "task", (5, 1), {"question": QUESTION, "references": ("It is wide.",), "passages": [LAKE]})
    assert len(scorer.score([asked], ["It is cold. It is wide."]).values) == 1
    (tmp_path / "saved" / CountLayer.FILE).unlink()
    with pytest.raises(ModelError, match=r"counts.safetensors: not the weights of this model's counts"):
        load_reward_model(tmp_path / "saved")


def test_training_fits_the_counts(tmp_path: Path) -> None:
    """And nothing is held out, so that nothing is measured."""
    save_bert(tmp_path / "encoder")
    wrong = "It is a very bad one, and it goes on and on for long."
    records = [record(f"It is. {wrong}"[7 * (i % 2) :], [(wrong, "Irrelevant")], name=f"r{i}") for i in range(12)]
    write_feedback(tmp_path / "feedback.json", records)
    config = RewardModelConfig(
        "relevance", OptimizerConfig(lr=1e-3), BatchConfig(batch_size=8), steps=2, max_length=160, counts=True
    )
    fields = {"data": str(tmp_path / "feedback.json"), "model": str(tmp_path / "encoder"), "held_out": 0.0}
    TrainRewardModel(**fields, output_dir=str(tmp_path / "run"), reward_model=config).run()  # type: ignore[arg-type]
    model = load_reward_model(tmp_path / "run")
    assert model.counts is not None and model.counts.weight[1, 4] > 0.1  # words, of "has_error"
    assert not (tmp_path / "run" / "trust.json").exists()


def test_every_kind_has_counts_of_one_width() -> None:
    for kind in KINDS.values():
        item = (
            factuality_parts(QUESTION, [LAKE], ["It is."])
            if kind.form == "segment"
            else answer_parts(QUESTION, [LAKE], "It is.")
        )
        assert {len(row) for row in word_counts(kind, item)} == {len(count_names(kind))}


def test_sentences_are_chosen_by_shared_words_and_kept_in_order() -> None:
    sentences = ["wikipage: A text: The old mill burnt.", "The lake is cold.", "| wikipage: B text: Cold lake water."]
    assert (
        sentences_of("wikipage: A text: The old mill burnt. The lake is cold. | wikipage: B text: Cold lake water.")
        == sentences
    )
    assert choose(sentences, [6, 4, 7], content_words("is the lake cold?"), 11) == [1, 2]
    assert choose(sentences, [6, 4, 7], content_words("the mill"), 10) == [0, 1]
    assert choose(sentences, [6, 4, 7], content_words("is the lake cold?"), 3) == []
    common = ["lake red stone", "lake red wood", "lake red boat", "salmon"]
    # 2 log(1 + 4/3) / √3 = 0.98 of each of the first three against log(1 + 4) = 1.61
    assert choose(common, [1] * 4, {"lake", "red", "salmon"}, 1) == [3], "a word that few sentences have weighs more"
    assert choose(common, [1] * 4, {"lake", "red", "salmon"}, 2) == [0, 3], "equal ones from the front"


def test_balanced_weights_by_hand() -> None:
    no_error, has_error = balanced_weights(errors=1, of=4)
    assert (no_error, has_error) == (pytest.approx(2 / 3), 2.0)
    assert 3 * no_error == pytest.approx(1 * has_error) and 3 * no_error + 1 * has_error == pytest.approx(4)
    assert balanced_weights(0, 4) == balanced_weights(4, 4) == balanced_weights(0, 0) == (1.0, 1.0)


def test_an_encoder_reads_the_sentences_that_were_chosen(tmp_path: Path) -> None:
    model = new_reward_model(save_bert(tmp_path / "encoder"), RewardModelRecord("factuality", max_length=160))
    parts = [factuality_parts(QUESTION, [LAKE], ["Nobody has been seen swimming."])]
    whole = RewardInputEncoder(model.tokenizer, 160).encode(parts)[0]
    assert whole.cut == 0
    for choice, shown, hidden in (
        ("first", "three kilometres", "swimming in it"),
        ("answer", "swimming in it", "three kilometres"),
    ):
        encoder = RewardInputEncoder(model.tokenizer, 160, passages=choice, passage_tokens=14)  # type: ignore[arg-type]
        (item,) = encoder.encode(parts)
        context = model.tokenizer.decode(item.ids[: item.separators[0]])
        assert shown in context and hidden not in context and item.cut > 0
        assert len(item.ids) == len(whole.ids) - item.cut
    roomy = RewardInputEncoder(model.tokenizer, 160, passages="answer").encode(parts)[0]
    assert roomy.ids == whole.ids
