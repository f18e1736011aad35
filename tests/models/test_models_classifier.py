"""Classifiers of texts: the label that is asked for, by the activation that the model was trained with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from reward_model_samples import save_bert
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.models.encoders.classifier import TextClassifier
from finegrained_rlhf.rewards import ClassifierScorer, TextScorer

TEXTS = ["The bridge.", "a " * 40, "When was the old bridge built? In 1920.", " The bridge.", "x"]
SIX = dict(enumerate(("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")))
TWO = {0: "neutral", 1: "toxic"}


def save_classifier(folder: Path, labels: dict[int, str], problem: str | None) -> Path:
    save_bert(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, id2label=labels, label2id={name: i for i, name in labels.items()}, problem_type=problem
        )
        for weight in (model.bert.pooler.dense.weight, model.classifier.weight):
            weight.data.normal_()
    model.save_pretrained(folder)
    return folder


def logits_one_by_one(folder: Path, texts: list[str]) -> torch.Tensor:
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts]).double()


def test_the_probability_of_the_label_by_the_models_own_activation(tmp_path: Path) -> None:
    """Batched and padded as one by one. Softmax over labels that do not exclude each other is the known trap."""
    six = save_classifier(tmp_path / "six", SIX, "multi_label_classification")
    two = save_classifier(tmp_path / "two", TWO, "single_label_classification")
    sigmoid = logits_one_by_one(six, TEXTS).sigmoid()
    for label, place in (("toxic", 0), ("insult", 4)):
        found = TextClassifier.open(six, label).probabilities(TEXTS, batch_size=2)
        assert found == pytest.approx(sigmoid[:, place].tolist(), abs=1e-5)
    softmax = logits_one_by_one(two, TEXTS).softmax(-1)[:, 1]
    assert TextClassifier.open(two, "toxic").probabilities(TEXTS, 3) == pytest.approx(softmax.tolist(), abs=1e-5)
    assert softmax.std() > 1e-3 and sigmoid.std() > 1e-3
    assert TextClassifier.open(two, "toxic").probabilities([]) == []


def test_the_scorer_gives_the_classifiers_probabilities(tmp_path: Path) -> None:
    two = save_classifier(tmp_path, TWO, None)
    scorer = ClassifierScorer(str(two), "toxic")
    assert isinstance(scorer, TextScorer)
    assert scorer.score_texts(TEXTS) == TextClassifier.open(two, "toxic", "softmax").probabilities(TEXTS)
    other = ClassifierScorer(str(two), "toxic", activation="sigmoid")
    other.setup(torch.device("cpu"))
    expected = logits_one_by_one(two, TEXTS).sigmoid()[:, 1]
    assert other.score_texts(TEXTS) == pytest.approx(expected.tolist(), abs=1e-5)
    assert scorer.identity != other.identity


def test_an_unknown_label_lists_those_there_are(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, SIX, "multi_label_classification")
    with pytest.raises(ModelError, match="no label 'toxicity'; id2label has toxic, severe_toxic, obscene, threat"):
        TextClassifier.open(folder, "toxicity")


@pytest.mark.parametrize(("labels", "problem"), [(SIX, None), ({0: "toxic"}, "regression")])
def test_a_model_that_does_not_say_what_its_logits_are(
    labels: dict[int, str], problem: str | None, tmp_path: Path
) -> None:
    folder = save_classifier(tmp_path, labels, problem)
    with pytest.raises(ModelError, match=rf"problem_type is {problem}\): set activation to sigmoid or softmax"):
        TextClassifier.open(folder, "toxic")
    assert len(TextClassifier.open(folder, "toxic", "sigmoid").probabilities(TEXTS)) == len(TEXTS)


def test_a_text_that_is_too_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save_classifier(tmp_path, TWO, "single_label_classification")
    short = TextClassifier.open(folder, "toxic", max_length=8)
    with caplog.at_level(logging.WARNING):
        cut = short.probabilities(["old bridge " * 30, "old bridge " * 40, "x"])
    assert cut[0] == pytest.approx(cut[1], abs=1e-6) and abs(cut[0] - cut[2]) > 1e-4
    assert caplog.text.count("lose their end") == 1
    with pytest.raises(DataError, match=r"a text of \d+ tokens; the classifier reads 8"):
        TextClassifier.open(folder, "toxic", max_length=8, too_long="refuse").probabilities(["x", "old bridge " * 30])
    assert TextClassifier.open(folder, "toxic", max_length=10_000).max_length <= 160


def test_what_is_no_classifier(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model here"):
        TextClassifier.open(tmp_path, "toxic")
    bert = save_bert(tmp_path / "bert")
    with pytest.raises(ModelError, match="no label 'toxic'; id2label has LABEL_0, LABEL_1"):
        TextClassifier.open(bert, "toxic")
    with pytest.raises(ModelError, match="the weights are not those of a BertForSequenceClassification"):
        TextClassifier.open(bert, "LABEL_1")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="activation must be sigmoid or softmax, got 'relu'"):
        ClassifierScorer("m", "toxic", activation="relu")
    with pytest.raises(ConfigError, match="too_long must be truncate or refuse, got 'drop'"):
        ClassifierScorer("m", "toxic", too_long="drop")
    with pytest.raises(ConfigError, match="need batch_size >= 1 and max_length >= 4, got 0 and None"):
        ClassifierScorer("m", "toxic", batch_size=0)
